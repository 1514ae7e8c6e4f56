package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Client is the agent's side: a connection to a keeper. Its methods may be called at the same time.
// A refusal by the keeper is an *Error; a lost connection is an ErrClosed.
type Client struct {
	socket net.Conn
	info   Info
	events *eventQueue
	out    chan Event
	done   chan struct{} // closed when the connection is lost
	wait   sync.WaitGroup

	writing sync.Mutex // one frame at a time

	measured measurement

	mu     sync.Mutex
	next   uint64
	asked  map[uint64]chan<- response
	reason error // why the connection was lost
}

// Dial connects the agent to the keeper that listens on a socket. One agent at a time: ErrBusy
// tells that another one is connected (a *BusyError knows its pid), ErrVersion that the keeper
// speaks another protocol (Upgrade may cure it), ErrNotRunning that no keeper listens.
func Dial(ctx context.Context, socket string) (*Client, error) {
	return dial(ctx, socket, roleAgent)
}

// Upgrade asks a keeper, of whatever protocol version, to replace itself by the program that is
// installed now. Afterwards the new one listens on the same socket, with the same pid and the same
// Envoys.
func Upgrade(ctx context.Context, socket string) error {
	client, err := dial(ctx, socket, roleUpgrade)
	if err != nil {
		return err
	}
	defer client.Close()
	return client.Reexecute(ctx)
}

func dial(ctx context.Context, path string, as role) (*Client, error) {
	var dialer net.Dialer
	socket, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("connect to the keeper at %s: %w", path, ErrNotRunning)
		}
		return nil, fmt.Errorf("connect to the keeper: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.SetDeadline(time.Unix(1, 0)) })
	var theirs hello
	// The keeper may have hung up before it read all: its answer counts.
	_ = writeFrame(socket, hello{Protocol: ProtocolVersion, Role: as})
	if err = readFrame(socket, &theirs); err != nil {
		// On its way out, or it never got in.
		err = fmt.Errorf("it hung up: %w: %w", ErrNotRunning, err)
	}
	if !stop() && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err == nil {
		err = accepted(theirs, as)
	}
	if err != nil {
		_ = socket.Close()
		return nil, fmt.Errorf("connect to the keeper at %s: %w", path, err)
	}
	c := &Client{
		socket: socket, info: *theirs.Info, events: newEventQueue(), out: make(chan Event),
		done: make(chan struct{}), asked: map[uint64]chan<- response{},
	}
	c.measured.take = func() ([]Process, error) {
		ctx, cancel := context.WithTimeout(context.Background(), measureTimeout)
		defer cancel()
		return c.list(ctx, operationMeasure)
	}
	c.wait.Go(c.read)
	c.wait.Go(c.deliver)
	return c, nil
}

// accepted looks at the keeper's hello.
func accepted(theirs hello, as role) error {
	switch {
	case theirs.Error != nil && theirs.Error.Code == CodeBusy:
		return &BusyError{PID: theirs.Error.PID}
	case theirs.Error != nil && theirs.Error.Code == CodeVersion,
		theirs.Protocol != ProtocolVersion && as != roleUpgrade:
		return &VersionError{Keeper: theirs.Protocol, Agent: ProtocolVersion}
	case theirs.Error != nil:
		return theirs.Error
	case theirs.Info == nil:
		return errors.New("the keeper does not say who it is")
	}
	return nil
}

// Info is what the keeper said about itself when it was connected to.
func (c *Client) Info() Info { return c.info }

// Events gives exits and log lines, in this order where both wait. The channel is closed when the
// connection is lost. A reader that is slow loses log lines (Dropped counts them), never an exit.
func (c *Client) Events() <-chan Event { return c.out }

// Done is closed when the connection is lost: the keeper has ended or replaced itself, or Close was
// called.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close hangs up. The keeper and its Envoys go on.
func (c *Client) Close() {
	c.lost(ErrClosed)
	c.wait.Wait()
}

// Start starts an Envoy.
func (c *Client) Start(ctx context.Context, spec StartSpec) (Process, error) {
	r, err := c.ask(ctx, request{Operation: operationStart, Start: &spec})
	if err != nil {
		return Process{}, err
	}
	if r.Process == nil {
		return Process{}, errIncomplete
	}
	return *r.Process, nil
}

// Signal sends a signal to a process that lives.
func (c *Client) Signal(ctx context.Context, id string, signal unix.Signal) error {
	_, err := c.ask(ctx, request{Operation: operationSignal, ID: id, Signal: int(signal)})
	return err
}

// Processes lists all that live, and those that exited and were not forgotten, in the order of
// their start.
func (c *Client) Processes(ctx context.Context) ([]Process, error) {
	return c.list(ctx, operationList)
}

// measureTimeout bounds one measurement, whoever waits for it.
const measureTimeout = 10 * time.Second

// Measure is Processes with the memory and the connections of those that live, for people who look
// and for a stop: reading the kernel's tables takes a third of a second with 20,000 connections on
// a busy machine. However many callers there are, one measurement runs at a time; the result is at
// most maxAge old, and what the keeper adds to that (MeasurementAge).
func (c *Client) Measure(ctx context.Context, maxAge time.Duration) ([]Process, error) {
	processes, err := c.measured.get(ctx, maxAge)
	if err != nil {
		return nil, fmt.Errorf("measure Envoy: %w", err)
	}
	return processes, nil
}

// Annotate keeps the agent's note on a process, at most MaxNote bytes, in place of the one before;
// it survives the agent.
func (c *Client) Annotate(ctx context.Context, id string, note json.RawMessage) error {
	_, err := c.ask(ctx, request{Operation: operationAnnotate, ID: id, Note: note})
	return err
}

// Forget drops a process that has exited.
func (c *Client) Forget(ctx context.Context, id string) error {
	_, err := c.ask(ctx, request{Operation: operationForget, ID: id})
	return err
}

// RunTimeout bounds Run where the context has no earlier deadline.
const RunTimeout = time.Minute

// Run executes a short command, such as Envoy's --version or --mode validate, where and as Envoy
// runs, with an empty environment. It is killed when the context ends.
func (c *Client) Run(ctx context.Context, path string, args []string) (RunResult, error) {
	timeout := RunTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, max(time.Until(deadline), time.Millisecond))
	}
	r, err := c.ask(ctx, request{Operation: operationRun, Run: &runSpec{Path: path, Args: args,
		Env: []string{}, Timeout: timeout}})
	if err != nil {
		return RunResult{}, err
	}
	if r.Run == nil {
		return RunResult{}, errIncomplete
	}
	return *r.Run, nil
}

// ClearInitializing resets the flag that a failed epoch leaves in the shared memory of its lineage,
// and tells whether it was set. A CodeLayout refusal means that this Envoy's layout is unknown.
func (c *Client) ClearInitializing(ctx context.Context, lineage int) (bool, error) {
	r, err := c.ask(ctx, request{Operation: operationClearInitializing, Lineage: lineage})
	return r.Done, err
}

// CloseDoors lets no new TCP connection in to the Envoys that live, and returns once they have
// taken those that wait (within about a second): closing the listeners then resets nobody. There is
// no way back.
func (c *Client) CloseDoors(ctx context.Context) error {
	_, err := c.ask(ctx, request{Operation: operationCloseDoors})
	return err
}

// Steer has every new connection of a port that an Envoy (from) shares with others of this keeper
// go to one of them (to), as a hot restart would, until the first ends, which is to close its
// listeners after a time. An error tells what could not be had: there the kernel shares out as
// before.
func (c *Client) Steer(ctx context.Context, from, to string, closes time.Duration) error {
	_, err := c.ask(ctx, request{Operation: operationSteer, ID: from, To: to, Closes: closes})
	return err
}

// Cleanup removes the sockets and the shared memory that Envoys left; none may live.
func (c *Client) Cleanup(ctx context.Context) error {
	_, err := c.ask(ctx, request{Operation: operationCleanup})
	return err
}

// Shutdown ends every Envoy (SIGTERM, SIGKILL after 5 s), cleans up and ends the keeper.
func (c *Client) Shutdown(ctx context.Context) error {
	_, err := c.ask(ctx, request{Operation: operationShutdown})
	if errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

// Reexecute makes the keeper replace itself by the program that is installed now. The connection is
// lost by it, as every other; an error means that the keeper goes on as it is.
func (c *Client) Reexecute(ctx context.Context) error {
	_, err := c.ask(ctx, request{Operation: operationReexecute})
	if errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

var errIncomplete = errors.New("the keeper's answer is incomplete")
