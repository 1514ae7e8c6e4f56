package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// upstream is a resolver to which queries are forwarded. It reuses connections, each for one query
// at a time.
type upstream struct {
	address string
	failed  atomic.Int64 // Unix time in ns of the last failure; 0: the last query succeeded

	mu   sync.Mutex
	idle map[string][]*connection // by network
}

type connection struct {
	*dns.Conn
	uses int
	last time.Time
}

const (
	maxIdle = 64  // maximum number of idle connections for each of udp and tcp
	maxUses = 256 // queries over one UDP socket, which is then replaced to change its port
	// idle time after which a connection is not reused; servers close theirs after some seconds
	maxRest = 5 * time.Second
	// avoided is how long after a failure an upstream is queried only after all others.
	avoided = 10 * time.Second
)

func newUpstream(address string) *upstream {
	return &upstream{address: address, idle: map[string][]*connection{}}
}

// exchange sends a query and returns the response. It repeats the query over TCP if the response is
// truncated.
func (u *upstream) exchange(ctx context.Context, query *dns.Msg) (*dns.Msg, error) {
	reply, err := u.over(ctx, "udp", query)
	if err == nil && reply.Truncated {
		reply, err = u.over(ctx, "tcp", query)
	}
	switch {
	case err == nil:
		u.failed.Store(0)
	// cancelled means that another upstream has responded
	case !errors.Is(ctx.Err(), context.Canceled):
		u.fail()
	}
	return reply, err
}

// fail records a failure, until the next success.
func (u *upstream) fail() { u.failed.Store(time.Now().UnixNano()) }

func (u *upstream) over(ctx context.Context, network string, query *dns.Msg) (*dns.Msg, error) {
	for {
		c, err := u.connect(ctx, network)
		if err != nil {
			return nil, fmt.Errorf("connect to %s: %w", u.address, withoutAddresses(err))
		}
		reply, err := c.exchange(ctx, query)
		if err == nil {
			u.release(network, c)
			return reply, nil
		}
		_ = c.Close()
		if c.uses == 1 || ctx.Err() != nil {
			return nil, fmt.Errorf("query to %s: %w", u.address, withoutAddresses(err))
		}
		// Try again with a new connection: the server may have closed this one while it was idle.
	}
}

// withoutAddresses returns the cause of a network error without the local port, so that similar
// errors have equal texts.
func withoutAddresses(err error) error {
	if failed, ok := errors.AsType[*net.OpError](err); ok {
		return failed.Err
	}
	return err
}

// connect returns an idle connection or a new one.
func (u *upstream) connect(ctx context.Context, network string) (*connection, error) {
	u.mu.Lock()
	idle := u.idle[network]
	for len(idle) > 0 {
		c := idle[len(idle)-1]
		idle = idle[:len(idle)-1]
		u.idle[network] = idle
		if time.Since(c.last) < maxRest {
			u.mu.Unlock()
			c.uses++
			return c, nil
		}
		_ = c.Close()
	}
	u.mu.Unlock()
	var dialer net.Dialer
	plain, err := dialer.DialContext(ctx, network, u.address)
	if err != nil {
		return nil, err
	}
	return &connection{Conn: &dns.Conn{Conn: plain, UDPSize: maxSize}, uses: 1}, nil
}

func (u *upstream) release(network string, c *connection) {
	c.last = time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.idle[network]) >= maxIdle || c.uses >= maxUses || u.idle == nil {
		_ = c.Close()
		return
	}
	u.idle[network] = append(u.idle[network], c)
}

// close closes the connections; those in use are closed after their query.
func (u *upstream) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, idle := range u.idle {
		for _, c := range idle {
			_ = c.Close()
		}
	}
	u.idle = nil
}

// exchange sends a query with a new ID. It ignores messages that are not the response.
func (c *connection) exchange(ctx context.Context, query *dns.Msg) (*dns.Msg, error) {
	own := *query // a copy, whose sections are shared and not modified
	own.Id = dns.Id()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := c.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil { // ctx may have ended before the deadline was reset
		return nil, err
	}
	if err := c.WriteMsg(&own); err != nil {
		return nil, err
	}
	for {
		reply, err := c.ReadMsg()
		switch {
		case reply == nil:
			return nil, err
		case reply.Id != own.Id || !reply.Response || len(reply.Question) != 1 ||
			!strings.EqualFold(reply.Question[0].Name, own.Question[0].Name) ||
			reply.Question[0].Qtype != own.Question[0].Qtype:
			continue
		case err != nil:
			return nil, err
		}
		return reply, nil
	}
}
