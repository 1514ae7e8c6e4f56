package keeper

import (
	"context"
	"net"
	"sync"
	"time"

	"outrider.org/outrider/agent/rpc"
)

// repliesQueued is how many answers may be queued for a client that reads slowly, before the keeper
// stops handling requests of the client.
const repliesQueued = 32

// connection is a connected agent, or a client that upgrades the keeper. One goroutine reads and
// handles requests, another writes answers and events. No other goroutine waits for these two.
type connection struct {
	conn    *rpc.Conn
	role    role
	pid     int
	replies chan response
	waiting chan struct{} // holds a token while exits is not empty
	// ctx ends with the connection. The contexts of calls derive from it (begin), so that the loss
	// of the connection cancels the commands and measurements of the client.
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup // goroutines of calls, such as commands and measurements

	mu    sync.Mutex
	exits []Process                     // exits not yet sent; bounded by the number of processes
	calls map[uint64]context.CancelFunc // cancel functions by request

	writing chan struct{} // holds a token while lines are sent, or while holdLines prevents it
}

func newConnection(socket *net.UnixConn, as role, pid int) *connection {
	ctx, cancel := context.WithCancel(context.Background())
	return &connection{
		conn: rpc.NewConn(socket), role: as, pid: pid, ctx: ctx, cancel: cancel,
		replies: make(chan response, repliesQueued), waiting: make(chan struct{}, 1),
		calls:   map[uint64]context.CancelFunc{},
		writing: make(chan struct{}, 1),
	}
}

// push queues an exit for the agent.
func (c *connection) push(process Process) {
	c.mu.Lock()
	c.exits = append(c.exits, process)
	c.mu.Unlock()
	select {
	case c.waiting <- struct{}{}:
	default:
	}
}

// answer queues an answer unless the connection is lost.
func (c *connection) answer(r response) {
	select {
	case c.replies <- r:
	case <-c.ctx.Done():
	}
}

// write sends what is queued until the connection is lost. Exits are sent before log lines.
func (c *connection) write(lines *backlog) {
	defer c.cancel()
	var waiting chan struct{}
	if c.role == roleAgent {
		waiting = lines.waiting
	}
	for {
		var err error
		select {
		case <-c.ctx.Done():
			return
		case r := <-c.replies:
			err = c.conn.Send(c.ctx, r)
		case <-c.waiting:
			err = c.writeExits()
		case <-waiting:
			if err = c.writeExits(); err == nil {
				err = c.writeLines(lines)
			}
		}
		if err != nil {
			_ = c.conn.Close()
			return
		}
	}
}

func (c *connection) writeExits() error {
	c.mu.Lock()
	exits := c.exits
	c.exits = nil
	c.mu.Unlock()
	for i := range exits {
		if err := c.conn.Send(c.ctx, response{Event: &Event{Exited: &exits[i]}}); err != nil {
			return err
		}
	}
	return nil
}

func (c *connection) writeLines(lines *backlog) error {
	c.writing <- struct{}{}
	defer func() { <-c.writing }()
	logs := lines.take()
	for i := range logs {
		if err := c.conn.Send(c.ctx, response{Event: &Event{Log: &logs[i]}}); err != nil {
			lines.putBack(logs[i:])
			return err
		}
	}
	return nil
}

// holdLines prevents the writer from removing lines from the backlog until release is called. Lines
// that were removed and not yet sent would be lost when the keeper re-executes itself. If the
// writer is still sending lines after wait, holdLines gives up.
func (c *connection) holdLines(wait time.Duration) (release func()) {
	select {
	case c.writing <- struct{}{}:
		return func() { <-c.writing }
	case <-time.After(wait):
		return func() {}
	}
}

// begin registers a call that can be cancelled; the caller must call end.
func (c *connection) begin(number uint64) (ctx context.Context, end func(), refusal *Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch _, used := c.calls[number]; {
	case used:
		return nil, nil, refuse(CodeInvalid, "request %d is still running", number)
	case len(c.calls) >= maxCalls:
		return nil, nil, refuse(CodeLimit, "%d calls of this connection are running", len(c.calls))
	}
	ctx, cancel := context.WithCancel(c.ctx)
	c.calls[number] = cancel
	return ctx, func() {
		c.mu.Lock()
		delete(c.calls, number)
		c.mu.Unlock()
		cancel()
	}, nil
}

// stop cancels a call.
func (c *connection) stop(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cancel, running := c.calls[number]; running {
		cancel()
	}
}
