package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"

	"outrider.org/outrider/agent/accept"
	"outrider.org/outrider/agent/admission"
)

const (
	minSize    = 512  // maximum bytes of a response to a client without EDNS
	maxSize    = 4096 // maximum bytes of a response over UDP
	bufferSize = 4 << 20
)

// lastAnswers bounds how long queries at upstreams continue after the server's end. Without an
// answer their clients would wait for seconds before they retry.
const lastAnswers = time.Second

// serve serves on the sockets until ctx ends, then closes them.
func (s *Server) serve(ctx context.Context, all []sockets) error {
	group, ctx := errgroup.WithContext(ctx)
	upstream, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	context.AfterFunc(ctx, func() { time.AfterFunc(lastAnswers, cancel) })
	local, remote := admission.NewPool(tcpLimits), admission.NewPool(admission.Limits{})
	for _, one := range all {
		group.Go(func() error { return s.serveUDP(ctx, upstream, one.udp) })
		// accept.Listener pauses after a failed Accept, which miekg's server would repeat at once
		tcp := accept.Listener{Listener: one.tcp, OnError: func(err error) {
			s.options.Logger.Error("cannot accept a DNS client over TCP", "error", err)
		}}
		listener := admission.NewListener(tcp, admission.Options{
			Admit: func(c net.Conn) (*admission.Pool, admission.ClientKey) {
				key := s.keyOfTCP(c)
				if key.Local() {
					return local, key
				}
				s.refused.Add(1)
				return remote, key
			}})
		server := &dns.Server{Listener: listener, Handler: dns.HandlerFunc(
			func(w dns.ResponseWriter, query *dns.Msg) { s.serveTCP(upstream, w, query) })}
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		group.Go(server.ActivateAndServe)
		group.Go(func() error {
			<-ctx.Done()
			select {
			case <-started:
				return server.Shutdown()
			// ActivateAndServe failed before it called NotifyStartedFunc
			case <-time.After(time.Second):
				return one.tcp.Close()
			}
		})
	}
	return group.Wait()
}

// serveUDP answers queries from the table and the cache in the receiving goroutine. It forwards
// others concurrently.
func (s *Server) serveUDP(ctx, upstream context.Context, socket *net.UDPConn) error {
	stop := context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	defer func() { _ = socket.Close() }()
	var forwards sync.WaitGroup
	defer forwards.Wait()
	_ = socket.SetReadBuffer(bufferSize) // as far as the host allows
	buffer, answer := make([]byte, dns.MaxMsgSize), make([]byte, 0, dns.MaxMsgSize)
	for {
		n, from, err := socket.ReadFromUDPAddrPort(buffer)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("read queries: %w", err)
		case err != nil || n < headerSize:
			continue // the error is an ICMP message about an earlier response
		}
		reply, rest := s.answer(answer[:0], buffer[:n], from.Addr(), false)
		if rest == nil {
			if reply != nil {
				_, _ = socket.WriteToUDPAddrPort(reply, from)
			}
			continue
		}
		leave := s.enter(from)
		if leave == nil {
			_, _ = socket.WriteToUDPAddrPort(s.fail(rest, dns.RcodeServerFailure), from)
			continue
		}
		forwards.Go(func() {
			defer leave()
			if reply := s.resolve(upstream, rest); reply != nil {
				_, _ = socket.WriteToUDPAddrPort(reply, from)
			}
		})
	}
}

func (s *Server) serveTCP(ctx context.Context, w dns.ResponseWriter, query *dns.Msg) {
	packed, err := query.Pack()
	if err != nil {
		return
	}
	from, err := netip.ParseAddrPort(w.RemoteAddr().String())
	if err != nil {
		return
	}
	reply, rest := s.answer(nil, packed, from.Addr(), true)
	if rest != nil {
		reply = s.resolve(ctx, rest)
	}
	if reply != nil {
		_, _ = w.Write(reply)
	}
}

const headerSize = 12

// query is a query that neither the table nor the cache answers.
type query struct {
	message *dns.Msg
	raw     []byte // the query as received, normalised
	size    int    // maximum size of the response in bytes
	table   *table // nil: the names of the mesh are not known yet
	cache   *cache // cache of the forwarder
}

// answer appends the response to b. If the query needs an upstream, answer returns the query
// instead. If both results are nil, no response is sent.
func (s *Server) answer(b, raw []byte, from netip.Addr, tcp bool) ([]byte, *query) {
	if raw[2]&0x80 != 0 { // a response
		return nil, nil
	}
	// Load the cache before the table: a change stores the new table, then a new cache. An answer
	// found with an old table can thus only enter an old cache.
	cache := s.forwards.cache.Load()
	t := s.table.Load()
	allowed := s.local.has(from)
	if allowed && !tcp && t != nil {
		if found := s.stored(b, t, cache, raw); found != nil {
			return found, nil
		}
	}
	q := &query{message: new(dns.Msg), table: t, cache: cache, size: minSize}
	if q.message.Unpack(raw) != nil || len(q.message.Question) != 1 {
		q.message = &dns.Msg{MsgHdr: dns.MsgHdr{Id: binary.BigEndian.Uint16(raw)}}
		return s.fail(q, dns.RcodeFormatError), nil
	}
	if q.raw = q.normalise(tcp); q.raw == nil {
		return nil, nil
	}
	kind, class := q.message.Question[0].Qtype, q.message.Question[0].Qclass
	opt := q.message.IsEdns0()
	switch {
	case !allowed:
		s.refused.Add(1)
		return s.fail(q, dns.RcodeRefused), nil
	case q.message.Opcode != dns.OpcodeQuery:
		return s.fail(q, dns.RcodeNotImplemented), nil
	case opt != nil && opt.Version() != 0:
		return s.fail(q, dns.RcodeBadVers), nil
	case t == nil && (s.port != 53 || class != dns.ClassINET):
		return s.fail(q, dns.RcodeServerFailure), nil
	case class != dns.ClassINET || kind == dns.TypeAXFR || kind == dns.TypeIXFR:
		// class CH: outrider-capture tests whether the proxy answers
		return s.fail(q, dns.RcodeRefused), nil
	case t == nil:
		return nil, q
	}
	if found := s.stored(b, t, cache, q.raw); found != nil {
		return found, nil
	}
	reply := t.answer(q.message)
	if reply == nil {
		return nil, q
	}
	s.tableHits.Add(1)
	q.finish(reply)
	orders, all, err := rotated(reply, q.size)
	if err != nil {
		return s.fail(q, dns.RcodeServerFailure), nil
	}
	if all {
		t.answers.put(q.raw, 0, orders...)
	}
	return append(b, orders[0]...), nil
}

// stored returns a cached response of the table or of an upstream, nil if there is none.
func (s *Server) stored(b []byte, t *table, cache *cache, raw []byte) []byte {
	if found := t.answers.get(b, raw); found != nil {
		s.tableHits.Add(1)
		return found
	}
	found := cache.get(b, raw)
	if found != nil {
		s.cached.Add(1)
	}
	return found
}

// resolve forwards a query and returns the response. It returns nil if ctx has ended: the client
// will retry.
func (s *Server) resolve(ctx context.Context, q *query) []byte {
	reply, err := s.forwards.forward(ctx, string(q.raw[2:]), q.message)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil
	case err != nil:
		s.options.Logger.Debug("DNS query failed", "name", q.message.Question[0].Name, "error", err)
		return s.fail(q, dns.RcodeServerFailure)
	}
	s.forwarded.Add(1)
	if q.table != nil && reply.Rcode == dns.RcodeNameError &&
		q.table.knows(q.message.Question[0].Name) {
		reply.Rcode = dns.RcodeSuccess // the name exists: the mesh has other records of it
	}
	until := lifetime(reply)
	q.finish(reply)
	packed, err := fit(reply, q.size)
	if err != nil {
		return s.fail(q, dns.RcodeServerFailure)
	}
	if until > 0 {
		q.cache.put(q.raw, until, packed)
	}
	return packed
}

// normalise removes differences between queries that have the same response, and returns the
// query's cache key. It sets q.size.
func (q *query) normalise(tcp bool) []byte {
	m := q.message
	m.Answer, m.Ns, m.Extra = nil, nil, onlyOPT(m)
	if opt := m.IsEdns0(); opt != nil {
		opt.Option = nil // options such as cookies differ in each query
		q.size = min(max(int(opt.UDPSize()), minSize), maxSize)
		opt.SetUDPSize(uint16(q.size))
	}
	packed, err := m.Pack()
	if err != nil {
		return nil
	}
	if tcp {
		q.size = dns.MaxMsgSize
		packed = append(packed, "tcp"...)
	}
	return packed
}

func onlyOPT(m *dns.Msg) []dns.RR {
	if opt := m.IsEdns0(); opt != nil {
		return []dns.RR{opt}
	}
	return nil
}

// finish adapts a response to its query: it contains EDNS only if the client uses EDNS.
func (q *query) finish(reply *dns.Msg) {
	reply.Id, reply.RecursionAvailable, reply.Compress = q.message.Id, true, true
	reply.Extra = withoutOPT(reply.Extra)
	if opt := q.message.IsEdns0(); opt != nil {
		reply.SetEdns0(maxSize, opt.Do())
	}
}

func withoutOPT(extra []dns.RR) []dns.RR {
	var all []dns.RR
	for _, rr := range extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			all = append(all, rr)
		}
	}
	return all
}

// fail returns an error response. It does not count responses to outrider-capture's test queries.
func (s *Server) fail(q *query, code int) []byte {
	if all := q.message.Question; len(all) == 0 || all[0].Qclass == dns.ClassINET {
		s.failed.Add(1)
	}
	reply := new(dns.Msg).SetRcode(q.message, code)
	q.finish(reply)
	packed, err := fit(reply, q.size)
	if err != nil {
		return nil
	}
	return packed
}
