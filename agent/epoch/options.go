package epoch

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/condition"
)

// Options are what a Supervisor is made of. Admin, Board and ConfigDir are needed.
type Options struct {
	Admin     func(address string) Admin // a client for what Spec.AdminAddress named; it must not connect yet
	Board     *condition.Board
	Logger    *slog.Logger // nil = slog.Default()
	ConfigDir string       // of envoy-rev<N>.json

	// Explain says in words how a process ended; nil = its code or signal.
	Explain func(code int, signal string, coreDump bool, lastLines []string) string
	// Exists reports whether there is a process with this pid; nil asks the kernel. It is used while the keeper is gone.
	Exists func(pid int) bool
	// Obstacle says why no Envoy could start now, such as a port that another program has; nil = nothing is known. It must not block.
	Obstacle func() error
	// Settings are read whenever they are needed, as the configuration keys behind them are [live].
	Settings func() Settings
}

// Settings are the guard's: restart_backoff_min, restart_backoff_max, restart_limit, restart_window.
type Settings struct {
	BackoffMin time.Duration
	BackoffMax time.Duration
	Limit      int // 0 = never gives up
	Window     time.Duration
}

// The bounds of what has none in the configuration.
const (
	askTimeout       = 3 * time.Second        // one question to the keeper
	validateTimeout  = 30 * time.Second       // envoy --mode validate; 1000 listeners take half a second
	pollHinted       = 2 * time.Millisecond   // how often a starting epoch is asked in the moment after a hint,
	hintedFor        = 50 * time.Millisecond  // which is this long;
	pollFast         = 10 * time.Millisecond  // in its first seconds
	pollSlow         = 100 * time.Millisecond // and later
	pollFastFor      = 3 * time.Second        //
	handshakeTimeout = 10 * time.Second       // a child whose admin never answered by then hangs on its parent
	parentNews       = 50 * time.Millisecond  // a refused hot restart waits this long for its parent's exit
	hurriedHandshake = 3 * time.Second        // the same when nobody serves
	parentGrace      = 300 * time.Millisecond // a child whose parent died may get live within this
	overdue          = 1500 * time.Millisecond
	// overdue: an epoch that its child should have ended is killed this long after it was due. Envoy does it within 100 ms.
	steerSettle      = time.Second            // an epoch that gets no new connection has accepted those that wait by then
	terminateTimeout = 5 * time.Second        // SIGTERM to SIGKILL
	abortTimeout     = time.Second            // the same when a stop is aborted
	keeperPatience   = 5 * time.Second        // with a keeper that is gone: it may be replacing itself
	missedPause      = 100 * time.Millisecond // between two looks at the processes of a keeper that is gone
	killTimeout      = 5 * time.Second        // SIGKILL to giving up on hearing of the exit
	provenFirst      = 2 * time.Second        // nobody serves: a request waits this long for what is known to work
	obstaclePause    = 3 * time.Second        // between two looks at what keeps Envoy from starting; longer than provenFirst, for those who wait
	forgetExits      = time.Minute            // a run of exits that the back-off counts ends after this
	handshakeTries   = 3                      // of a hot restart that fails in its handshake, the flag cleared between
	probeInterval    = 5 * time.Second        // of the live epoch's admin
	probeTimeout     = 2 * time.Second        //
	tellTimeout      = 5 * time.Second        // the live epoch whether to drain
	probeMisses      = 3                      // in a row make an epoch silent
	preflightHurry   = 500 * time.Millisecond // the parent's admin before a hot restart: one that was stopped serves nobody until it is woken
	preflightTimeout = time.Second            // the same once it was
	cureInterval     = time.Minute            // between two attempts to cure an epoch that is silent or without admin
)

// New returns a supervisor; nothing happens before Run.
func New(options Options) *Supervisor {
	if options.Logger == nil {
		options.Logger = slog.Default()
	}
	if options.Explain == nil {
		options.Explain = explain
	}
	if options.Exists == nil {
		options.Exists = func(pid int) bool { return !errors.Is(unix.Kill(pid, 0), unix.ESRCH) }
	}
	if options.Obstacle == nil {
		options.Obstacle = func() error { return nil }
	}
	if options.Settings == nil {
		options.Settings = DefaultSettings
	}
	return &Supervisor{
		options: options,
		log:     options.Logger,
		inbox:   make(chan func()),
		asking:  make(chan struct{}, 1),
		ended:   make(chan struct{}),
		changed: make(chan struct{}),
		hints:   make(chan struct{}, 1),
		telling: make(chan struct{}, 1),
		prefix:  fmt.Sprintf("%08x", rand.Uint32()),
	}
}

// DefaultSettings are the defaults of the [envoy] table.
func DefaultSettings() Settings {
	return Settings{BackoffMin: time.Second, BackoffMax: time.Minute, Limit: 10, Window: 10 * time.Minute}
}

func explain(code int, signal string, _ bool, _ []string) string {
	if signal != "" {
		return "ended by " + signal
	}
	return fmt.Sprintf("exited with code %d", code)
}
