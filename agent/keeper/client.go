package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/rpc"
)

// Client is a connection of the agent to a keeper. Its methods may be called concurrently. If the
// keeper refuses a request, the error is an *Error; if the connection is lost, it is ErrClosed.
type Client struct {
	calls    *rpc.Client[response]
	info     Info
	events   *eventQueue
	out      chan Event
	wait     sync.WaitGroup
	measured measurement
	checks   chan struct{} // holds one element per CheckAccess in progress
}

// Dial connects the agent to the keeper that listens on a socket. One agent may be connected at a
// time. The error is ErrBusy if another agent is connected (*BusyError has its pid), errVersion if
// the keeper has another protocol version (see Upgrade), ErrNotRunning if no keeper listens.
func Dial(ctx context.Context, socket string) (*Client, error) {
	return dial(ctx, socket, roleAgent)
}

// Upgrade makes a keeper of any protocol version replace itself by the installed program. The
// keeper's socket, pid and Envoys remain.
func Upgrade(ctx context.Context, socket string) error {
	client, err := dial(ctx, socket, roleUpgrade)
	if err != nil {
		return err
	}
	defer client.Close()
	return client.reexecute(ctx)
}

func dial(ctx context.Context, path string, as role) (*Client, error) {
	connection, err := rpc.Dial(ctx, path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("connect to the keeper at %s: %w", path, ErrNotRunning)
		}
		return nil, fmt.Errorf("connect to the keeper: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = connection.Close() })
	var theirs hello
	// Ignore a failed send: the keeper may refuse the client and close the connection before it has
	// read the hello. Its answer has the reason.
	_ = connection.Send(ctx, hello{Protocol: protocolVersion, Role: as})
	if err = connection.Receive(time.Time{}, &theirs); err != nil {
		// The keeper is exiting, or could not start.
		err = fmt.Errorf("%w: the keeper closed the connection: %w", ErrNotRunning, err)
	}
	if !stop() && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err == nil {
		err = accepted(theirs, as)
	}
	if err != nil {
		_ = connection.Close()
		return nil, fmt.Errorf("connect to the keeper at %s: %w", path, err)
	}
	c := &Client{info: *theirs.Info, events: newEventQueue(), out: make(chan Event),
		checks: make(chan struct{}, maxRequests)}
	c.calls = rpc.NewClient(connection, ErrClosed, func(r response) {
		if r.Event != nil {
			c.events.add(*r.Event)
		}
	})
	c.measured.take = func() ([]Process, error) {
		ctx, cancel := context.WithTimeout(context.Background(), measureTimeout)
		defer cancel()
		return c.list(ctx, operationMeasure)
	}
	c.wait.Go(c.deliver)
	return c, nil
}

// accepted returns an error unless the keeper's hello accepts this client.
func accepted(theirs hello, as role) error {
	switch {
	case theirs.Error != nil && theirs.Error.Code == CodeBusy:
		return &BusyError{PID: theirs.Error.PID}
	case theirs.Error != nil && theirs.Error.Code == CodeVersion,
		theirs.Protocol != protocolVersion && as != roleUpgrade:
		return &VersionError{Keeper: theirs.Protocol, Agent: protocolVersion}
	case theirs.Error != nil:
		return theirs.Error
	case theirs.Info == nil:
		return errors.New("the keeper's hello message is incomplete")
	}
	return nil
}

// Info returns the keeper's description of itself, received when the connection was opened.
func (c *Client) Info() Info { return c.info }

// Events returns exits and log lines, exits first. The channel is closed when the connection is
// lost. A slow reader loses log lines (Dropped counts them), but no exit.
func (c *Client) Events() <-chan Event { return c.out }

// Done is closed when the connection is lost: the keeper has exited or replaced itself, or Close
// was called.
func (c *Client) Done() <-chan struct{} { return c.calls.Done() }

// Close closes the connection. The keeper and its Envoys continue to run.
func (c *Client) Close() {
	c.calls.Close()
	c.wait.Wait()
}

// Start starts an Envoy.
func (c *Client) Start(ctx context.Context, spec StartSpec) (Process, error) {
	r, err := c.call(ctx, request{Operation: operationStart, Start: &spec})
	if err != nil {
		return Process{}, err
	}
	if r.Process == nil {
		return Process{}, errIncomplete
	}
	return *r.Process, nil
}

// Signal sends a signal to a living process.
func (c *Client) Signal(ctx context.Context, id string, signal unix.Signal) error {
	_, err := c.call(ctx, request{Operation: operationSignal, ID: id, Signal: int(signal)})
	return err
}

// Processes lists the living Envoys, and those that have exited and for which Forget was not
// called, in the order of their start.
func (c *Client) Processes(ctx context.Context) ([]Process, error) {
	return c.list(ctx, operationList)
}

// measureTimeout bounds one measurement, which concurrent callers of MeasureProcesses share.
const measureTimeout = 10 * time.Second

// MeasureProcesses is like Processes, and adds memory and connections of the living Envoys.
// Concurrent callers share one measurement, which takes up to a third of a second with 20,000
// connections on a busy machine. The result is at most maxAge + MaxMeasurementAge old.
func (c *Client) MeasureProcesses(ctx context.Context, maxAge time.Duration) ([]Process, error) {
	processes, err := c.measured.get(ctx, maxAge)
	if err != nil {
		return nil, fmt.Errorf("measure Envoy's memory and connections: %w", err)
	}
	return processes, nil
}

// SetNote replaces the agent's note on a process, at most maxNote bytes. The keeper stores the
// note until Forget is called for the process.
func (c *Client) SetNote(ctx context.Context, id string, note json.RawMessage) error {
	_, err := c.call(ctx, request{Operation: operationAnnotate, ID: id, Note: note})
	return err
}

// Forget removes a process that has exited from the list.
func (c *Client) Forget(ctx context.Context, id string) error {
	_, err := c.call(ctx, request{Operation: operationForget, ID: id})
	return err
}

// runTimeout bounds Run if the context has no earlier deadline.
const runTimeout = time.Minute

// Run executes a short command such as envoy --version or --mode validate, as Envoy's user, in its
// sandbox and with an empty environment. The command is killed when the context ends.
func (c *Client) Run(ctx context.Context, path string, args []string) (RunResult, error) {
	timeout := runTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, max(time.Until(deadline), time.Millisecond))
	}
	r, err := c.call(ctx, request{Operation: operationRun, Run: &runSpec{Path: path, Args: args,
		Env: []string{}, Timeout: timeout}})
	if err != nil {
		return RunResult{}, err
	}
	if r.Run == nil {
		return RunResult{}, errIncomplete
	}
	return *r.Run, nil
}

// ClearInitializingFlag resets Envoy's flag "initializing", which a failed epoch leaves set in the
// shared memory of its lineage, and reports whether it was set. The error has CodeUnknownLayout if
// the layout of the memory is unknown.
func (c *Client) ClearInitializingFlag(ctx context.Context, lineage int) (bool, error) {
	r, err := c.call(ctx, request{Operation: operationClearInitializing, Lineage: lineage})
	return r.Done, err
}

// StopEnvoysAccepting makes the kernel refuse new TCP connections to all living Envoys. It returns
// once they have accepted the connections in their queues, or after about a second. When an Envoy
// later closes its listeners, the kernel then resets no connection. The effect cannot be undone.
func (c *Client) StopEnvoysAccepting(ctx context.Context) error {
	_, err := c.call(ctx, request{Operation: operationStopAccepting})
	return err
}

// SteerNewConnections directs new connections to one of two Envoys that listen on the same ports.
// The parameters from and to are the IDs of the Envoy that receives no more connections and of the
// one that receives them all. The effect lasts until Envoy from exits. closesIn is the time until
// Envoy from closes its listeners. Ports that the error names are unchanged.
func (c *Client) SteerNewConnections(ctx context.Context, from, to string,
	closesIn time.Duration) error {
	_, err := c.call(ctx, request{Operation: operationSteer, ID: from, To: to, Closes: closesIn})
	return err
}

// RemoveEnvoyFiles removes the sockets and the shared memory of Envoys. It fails while one lives.
func (c *Client) RemoveEnvoyFiles(ctx context.Context) error {
	_, err := c.call(ctx, request{Operation: operationCleanup})
	return err
}

// Shutdown terminates all Envoys (SIGTERM, after 5 s SIGKILL), removes their files and ends the
// keeper.
func (c *Client) Shutdown(ctx context.Context) error {
	_, err := c.call(ctx, request{Operation: operationShutdown})
	if errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

// reexecute makes the keeper replace itself by the installed program, which ends all connections.
// An error means that the keeper continues unchanged.
func (c *Client) reexecute(ctx context.Context) error {
	_, err := c.call(ctx, request{Operation: operationReexecute})
	if errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

var errIncomplete = errors.New("the keeper's answer is incomplete")
