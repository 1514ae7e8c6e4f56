package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/backoff"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/lifecycle"
)

// AdminViewConfig holds [envoy] admin_port and admin_access.
type AdminViewConfig struct {
	Port int  // on 127.0.0.1; 0 disables the view
	Full bool // admin_access = "full"
}

// AdminViewOptions configures an AdminView.
type AdminViewOptions struct {
	Config      AdminViewConfig
	Proxy       Proxy
	Epochs      Epochs
	TrustedUIDs []uint32 // local users whose connections have separate limits
	Conditions  *condition.Registry
	Logger      *slog.Logger
}

// AdminView is an HTTP view of the live epoch's admin interface. Envoy's own interface listens on a
// Unix socket per epoch and closes when the next epoch starts; the view remains reachable. It is
// ready once it listens, is disabled, or has raised the condition that it cannot listen.
type AdminView struct {
	lifecycle.Readiness
	options AdminViewOptions
	server  *http.Server
	full    atomic.Bool
	gate    *gate
	dumps   *dumps
	lost    chan struct{} // buffered; signals that the listener failed
	wake    chan struct{} // buffered; signals that the port may be free again

	mu       sync.Mutex
	port     int               // configured port; 0: disabled
	held     map[uint64]string // admin addresses of the epochs that reloads request, by reload ID
	reserved []string          // addresses (host:port) that Envoy listens on or is about to
	// last is the admin address of the live epoch; while none is live, that of the starting epoch,
	// or else of the last live one.
	last     string
	listener net.Listener // nil if none is open
	running  bool
	serving  sync.WaitGroup
}

// conditionView is active while the port of the admin view cannot be bound.
const conditionView = "admin-port-unavailable"

// NewAdminView returns a view that listens once Run is called.
func NewAdminView(options AdminViewOptions) *AdminView {
	v := &AdminView{options: options, gate: newGate(options.TrustedUIDs), lost: make(chan struct{},
		1),
		wake: make(chan struct{}, 1), port: options.Config.Port, held: map[uint64]string{}}
	v.full.Store(options.Config.Full)
	v.dumps = newDumps(options.Proxy, v.gate)
	v.server = newHTTPServer(v.handler(), options.Logger)
	// With full access, operators may request a CPU profile, which takes arbitrarily long.
	v.server.WriteTimeout = 0
	return v
}

// Name returns the name of the component.
func (v *AdminView) Name() string { return "admin-view" }

// ListenAddress returns the address that the view listens on, or "".
func (v *AdminView) ListenAddress() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.listener == nil {
		return ""
	}
	return v.listener.Addr().String()
}

// ConnectionStats returns the connection statistics of the view.
func (v *AdminView) ConnectionStats() admission.Stats { return v.gate.stats() }

// Run serves until ctx ends. While the port cannot be bound, it raises a condition and retries
// every second. Run may be called once.
func (v *AdminView) Run(ctx context.Context) error {
	v.mu.Lock()
	v.running = true
	v.mu.Unlock()
	for {
		changed := v.options.Epochs.Changed()
		var again <-chan time.Time // nil while the view listens, so that an idle agent sleeps
		if !v.retry() {
			again = time.After(bindRetryAfter)
		}
		v.MarkReady()
		select {
		case <-changed:
		case <-again:
		case <-v.wake:
		case <-v.lost:
			_ = backoff.Sleep(ctx, bindRetryAfter)
		case <-ctx.Done():
			v.mu.Lock()
			v.running = false
			v.mu.Unlock()
			admission.Shutdown(ctx, v.server)
			v.serving.Wait()
			return nil
		}
	}
}

// retry calls update, and then binds the configured port unless the view listens already, is
// disabled or leaves the port to Envoy. It returns false if binding failed.
func (v *AdminView) retry() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.update()
	if v.listener != nil || v.port == 0 || v.yieldsTo(v.port) != "" {
		return true
	}
	if err := v.open(v.port); err != nil {
		v.options.Conditions.Raise(conditionView, condition.Warning,
			fmt.Sprintf("%v; it is tried again every second", err))
		return false
	}
	return true
}

// open binds port and closes the previous listener. Callers hold mu.
func (v *AdminView) open(port int) error {
	var config net.ListenConfig
	listener, err := config.Listen(context.Background(), "tcp", viewAddress(port))
	if err != nil {
		return fmt.Errorf("cannot serve Envoy's admin interface on [envoy] admin_port %d: %w", port,
			err)
	}
	v.close()
	v.listener = listener
	v.options.Conditions.Clear(conditionView)
	v.serving.Go(func() {
		err := v.server.Serve(v.gate.listen(listener))
		if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
			return
		}
		v.options.Logger.Error("proxy of Envoy's admin interface ended unexpectedly", "error", err)
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.listener == listener {
			v.close()
			select {
			case v.lost <- struct{}{}: // makes Run open the port again
			default:
			}
		}
	})
	return nil
}

// close stops listening; requests in progress continue. Callers hold mu.
func (v *AdminView) close() {
	if v.listener != nil {
		_ = v.listener.Close()
		v.listener = nil
	}
}

// Configure applies a changed configuration. If the new port cannot be bound, Configure returns an
// error and the view remains on the old port, with the new access.
func (v *AdminView) Configure(config AdminViewConfig) error {
	v.full.Store(config.Full)
	v.mu.Lock()
	defer v.mu.Unlock()
	defer v.wakeUp()
	switch {
	case config.Port == v.port:
	case !v.running:
		v.port = config.Port
	case config.Port == 0 || v.yieldsTo(config.Port) != "":
		v.close()
		v.port = config.Port
		v.options.Conditions.Clear(conditionView)
	default:
		if err := v.open(config.Port); err != nil {
			return err
		}
		v.port = config.Port
	}
	return nil
}

// viewAddress returns the loopback address of a view's port.
func viewAddress(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
