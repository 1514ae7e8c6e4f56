package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/condition"
)

// ViewConfig is [envoy] admin_port and admin_access.
type ViewConfig struct {
	Port int  // on 127.0.0.1; 0 = no view
	Full bool // admin_access = "full"
}

// ViewOptions are a View's.
type ViewOptions struct {
	Config  ViewConfig
	Proxy   Proxy
	Trusted []uint32 // users of this host whose connections no others keep out
	Board   *condition.Board
	Logger  *slog.Logger
}

// View is the view of the live epoch's admin interface. Envoy's own listens on a Unix socket per
// epoch and is closed when the next epoch comes; the view stays.
type View struct {
	options ViewOptions
	server  *http.Server
	full    atomic.Bool
	gate    *gate
	dumps   *dumps
	ready   chan struct{}
	lost    chan struct{} // holds one: the listener failed
	wake    chan struct{} // holds one: the port may be bound again

	mu       sync.Mutex
	port     int          // that was asked for
	taken    []string     // see Yield
	listener net.Listener // nil: none is open
	running  bool
	serving  sync.WaitGroup
}

// conditionView is the condition that stands while the port cannot be had.
const conditionView = "admin-port-unavailable"

// NewView returns a view; Run serves.
func NewView(options ViewOptions) *View {
	v := &View{options: options, gate: newGate(options.Trusted), ready: make(chan struct{}), lost: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		port: options.Config.Port}
	v.full.Store(options.Config.Full)
	v.dumps = newDumps(options.Proxy, v.gate)
	v.server = newHTTPServer(v.Handler(), options.Logger)
	// a CPU profile or a log of lookups takes as long as it takes; full is for operators
	v.server.WriteTimeout = 0
	return v
}

// Name is the part's name.
func (v *View) Name() string { return "admin-view" }

// Ready is closed once the view listens, is off, or has told by a condition that it cannot listen
// yet.
func (v *View) Ready() <-chan struct{} { return v.ready }

// Address is where the view listens, "" if it does not.
func (v *View) Address() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.listener == nil {
		return ""
	}
	return v.listener.Addr().String()
}

// Connections returns what has been counted of connections to the view.
func (v *View) Connections() admission.Stats { return v.gate.stats() }

// Run serves until ctx ends. A port that is taken is a condition and tried again. It runs once.
func (v *View) Run(ctx context.Context) error {
	v.mu.Lock()
	v.running = true
	v.mu.Unlock()
	for first := true; ; first = false {
		var again <-chan time.Time // none once it listens: an agent that is idle is not woken
		if !v.retry() {
			again = time.After(bindRetryAfter)
		}
		if first {
			close(v.ready)
		}
		select {
		case <-again:
		case <-v.wake:
		case <-v.lost:
			_ = pause(ctx, bindRetryAfter)
		case <-ctx.Done():
			v.mu.Lock()
			v.running = false
			v.mu.Unlock()
			shutdown(ctx, v.server)
			v.serving.Wait()
			return nil
		}
	}
}

// retry binds the port that was asked for, if it is not yet bound. False: it could not.
func (v *View) retry() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.listener != nil || v.port == 0 || v.yieldsTo(v.port) != "" {
		return true
	}
	if err := v.open(v.port); err != nil {
		v.options.Board.Raise(conditionView, condition.Warning,
			fmt.Sprintf("%v; it is tried again every second", err))
		return false
	}
	return true
}

// open binds a port in place of the one before. With mu held.
func (v *View) open(port int) error {
	var config net.ListenConfig
	listener, err := config.Listen(context.Background(), "tcp", viewAddress(port))
	if err != nil {
		return fmt.Errorf("no view of Envoy's admin on [envoy] admin_port %d: %w", port, err)
	}
	v.close()
	v.listener = listener
	v.options.Board.Clear(conditionView)
	v.serving.Go(func() {
		err := v.server.Serve(v.gate.listen(listener))
		if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
			return
		}
		v.options.Logger.Error("the view of Envoy's admin ended", "error", err)
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.listener == listener {
			v.close()
			select {
			case v.lost <- struct{}{}: // Run opens it again
			default:
			}
		}
	})
	return nil
}

// close ends listening; answers under way go on. With mu held.
func (v *View) close() {
	if v.listener != nil {
		_ = v.listener.Close()
		v.listener = nil
	}
}

// SetConfig applies a changed configuration. If the new port cannot be had the view stays on the
// old one, with the new access, and the error says why.
func (v *View) SetConfig(config ViewConfig) error {
	v.full.Store(config.Full)
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case config.Port == v.port:
	case !v.running:
		v.port = config.Port
	case config.Port == 0 || v.yieldsTo(config.Port) != "":
		v.close()
		v.port = config.Port
		v.options.Board.Clear(conditionView)
	default:
		if err := v.open(config.Port); err != nil {
			return err
		}
		v.port = config.Port
	}
	return nil
}

// Yield sets the addresses (host:port) that Envoy itself listens on, or is about to. If the view's
// port is among them the view stops listening before Yield returns, and returns when it no longer
// is. Yield returns the first address that the view yields to, "" if there is none.
func (v *View) Yield(taken []string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.taken = taken
	to := v.yieldsTo(v.port)
	switch {
	case to != "":
		v.close()
		v.options.Board.Clear(conditionView)
	case v.listener == nil:
		select {
		case v.wake <- struct{}{}:
		default:
		}
	}
	return to
}

// yieldsTo returns the address of Envoy's own that a port of the view would clash with. With mu
// held.
func (v *View) yieldsTo(port int) string {
	if own := viewAddress(port); port != 0 && slices.Contains(v.taken, own) {
		return own
	}
	return ""
}

// viewAddress is where the view listens.
func viewAddress(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
