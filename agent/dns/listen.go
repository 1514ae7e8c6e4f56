package dns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"outrider.org/outrider/agent/condition"
)

// Names in systemd's file descriptor store.
const (
	storedSockets = "dns"
	storedRoute   = "dns-route"
)

// conditionAddress is active while the address cannot be bound.
const conditionAddress = "dns-address-unavailable"

const bindRetryAfter = time.Second

// sockets are the listeners of one address.
type sockets struct {
	udp *net.UDPConn
	tcp net.Listener
}

// retained are the sockets that systemd kept open while the agent restarted, by network and
// address. Queries wait in their receive buffers.
type retained map[string]io.Closer

func open(files []*os.File) retained {
	all := retained{}
	for _, file := range files {
		if udp, err := net.FilePacketConn(file); err == nil {
			all["udp "+udp.LocalAddr().String()] = udp
		} else if tcp, err := net.FileListener(file); err == nil {
			all["tcp "+tcp.Addr().String()] = tcp
		}
		_ = file.Close()
	}
	return all
}

func (r retained) close() {
	for _, socket := range r {
		_ = socket.Close()
	}
	clear(r)
}

// take removes and returns the retained socket of an address, nil if there is none. The caller owns
// it.
func (r retained) take(network, address string) io.Closer {
	host, port, _ := net.SplitHostPort(address)
	hosts := []string{host}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		// Go binds :: if this host supports IPv6, otherwise 0.0.0.0
		hosts = []string{"::", "0.0.0.0"}
	} else if err == nil {
		hosts = []string{ip.Unmap().String()}
	}
	for _, host := range hosts {
		key := network + " " + net.JoinHostPort(host, port)
		if socket := r[key]; socket != nil {
			delete(r, key)
			return socket
		}
	}
	return nil
}

// bind listens on the address and retries until it succeeds or ctx ends. It also reports whether
// retained sockets are used.
func (s *Server) bind(ctx context.Context) (bound []sockets, again bool, err error) {
	before := open(s.storedSockets)
	stored := len(before)
	for {
		if bound, err = s.listen(ctx, before); err == nil {
			break
		}
		if len(before) > 0 { // a retained socket may occupy the address
			before.close()
			continue
		}
		s.options.Conditions.Raise(conditionAddress, condition.Error, fmt.Sprintf(
			"no DNS proxy on [dns] listen: %v; it is tried again every second", err))
		s.MarkReady()
		select {
		case <-time.After(bindRetryAfter):
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
	s.options.Conditions.Clear(conditionAddress)
	again = len(before) < stored
	before.close() // close the sockets of another address
	return bound, again, nil
}

// store stores the sockets with systemd, which keeps them open while the agent restarts. It waits
// until the names of the mesh are known, at most for firstTable. An agent that crashes before it
// can answer must not store them: while it crashes again and again, queries would wait in the open
// sockets instead of failing immediately.
func (s *Server) store(ctx context.Context, bound []sockets) {
	select {
	case <-s.first:
	case <-time.After(firstTable):
	case <-ctx.Done():
		select {
		case <-s.first:
		default:
			return
		}
	}
	var err error
	for _, one := range bound {
		err = errors.Join(err, s.options.Store.Add(storedSockets, one.udp, one.tcp.(*net.TCPListener)))
	}
	if err != nil {
		s.options.Logger.Warn("cannot store the DNS proxy's sockets: queries fail while the agent restarts", "error", err)
	}
}

// listen binds the address; for 127.0.0.1 also ::1 if the host has IPv6.
func (s *Server) listen(ctx context.Context, before retained) (all []sockets, err error) {
	host, port, err := net.SplitHostPort(s.options.Listen)
	if err != nil {
		return nil, err
	}
	hosts := []string{host}
	if host == "localhost" || host == "127.0.0.1" {
		hosts = []string{"127.0.0.1", "::1"}
	}
	for i, host := range hosts {
		one, err := listenOne(ctx, net.JoinHostPort(host, port), before)
		if err != nil && i == 0 {
			return nil, err
		}
		if err != nil {
			s.options.Logger.Info("cannot bind the DNS proxy's IPv6 address", "error", err)
			continue
		}
		all = append(all, one)
		port = strconv.Itoa(one.udp.LocalAddr().(*net.UDPAddr).Port)
	}
	return all, nil
}

func listenOne(ctx context.Context, address string, before retained) (one sockets, err error) {
	var config net.ListenConfig
	var ok bool
	if one.udp, ok = before.take("udp", address).(*net.UDPConn); !ok {
		packets, err := config.ListenPacket(ctx, "udp", address)
		if err != nil {
			return sockets{}, err
		}
		one.udp = packets.(*net.UDPConn)
	}
	address = one.udp.LocalAddr().String()
	if one.tcp, ok = before.take("tcp", address).(net.Listener); !ok {
		if one.tcp, err = config.Listen(ctx, "tcp", address); err != nil {
			return sockets{}, errors.Join(err, one.udp.Close())
		}
	}
	return one, nil
}
