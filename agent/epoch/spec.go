package epoch

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// LaunchInput has the values on which an epoch's bootstrap and command line depend, besides the
// configuration.
type LaunchInput struct {
	// number of the epoch, as users see it; part of the names of its files and admin socket
	Number        int
	RestartEpoch  int    // argument of --restart-epoch
	Lineage       int    // number from 0; lineages that run at the same time have different ones
	HotRestart    bool   // false: --disable-hot-restart
	BootstrapPath string // argument of -c
}

// Command is a command line that the keeper executes.
type Command struct {
	Path string   `json:"path"`
	Args []string `json:"args"` // without the program's name
	Env  []string `json:"env"`  // KEY=value
}

// Spec describes a requested Envoy process. Its functions may be called concurrently and must be
// pure.
type Spec struct {
	// Digest identifies the configuration: specs with equal digests differ only in settings that
	// need no new epoch, see updateSpec.
	Digest string

	Bootstrap       func(LaunchInput) ([]byte, error)  // content of LaunchInput.BootstrapPath
	Command         func(LaunchInput) (Command, error) // command line of the process
	ValidateCommand func(LaunchInput) (Command,
		error) // command line with --mode validate; nil: no validation
	AdminAddress func(LaunchInput) string // address of the admin interface; see Options.Admin

	// hot-restart version of the binary ("11.104"); "": it has no hot restart
	HotRestartVersion string

	Namespace string // mesh namespace that the proxy reports; "": unknown

	// addresses of Outrider's own listeners, whose connections do not count as client connections
	OutriderListeners []netip.AddrPort

	LiveTimeout time.Duration // time within which an epoch must become live; later it is aborted
	DrainTime   time.Duration // --drain-time-s: drain time of this epoch after it is replaced
	// --parent-shutdown-time-s: how long after becoming live an epoch ends its parent
	ParentShutdownTime time.Duration

	adopted *adoptedSpec // not nil for an adopted epoch; see makeStartable
}

// Request is a request for a new epoch.
type Request struct {
	Spec      *Spec
	Reason    string // text for people: "reload", "file changed: /etc/…"
	IfChanged bool   // do nothing if a live epoch has the same digest
	// AbortEpochs names draining epochs that may be killed, which cuts the connections of their
	// clients, so that the request need not wait. They are killed after Envoy has accepted the
	// configuration (ValidateCommand), and only if AbortEpochs names all draining epochs.
	AbortEpochs []int

	// OnWait, if not nil, is called when the request starts to wait, and whenever the reason or the
	// end of the wait changes. until is the latest end; zero: unknown. OnWait must not block,
	// because it runs in the goroutine that delivers all results and conditions.
	OnWait func(until time.Time, why string)
}

// Result is the outcome of a successful request.
type Result struct {
	Epoch    int // epoch that is live now
	Previous int // epoch that served before; -1: none; equal to Epoch if Mode is NoNewEpoch
	Mode     Mode
}

// AttemptError is the error of a request that failed without an effect on the live epoch.
type AttemptError struct {
	Number    int      // epoch that was attempted
	Remaining int      // epoch that continues to serve; -1: none
	Reasons   []string // sentences; the first one states the decisive reason
	LastLines []string // last log lines of the failed epoch, if it was started

	cause error
}

// Error returns one line: the attempted epoch, the cause, and the epoch that continues to serve.
func (r *AttemptError) Error() string {
	serves := "no epoch is live"
	if r.Remaining >= 0 {
		serves = fmt.Sprintf("epoch %d continues to serve", r.Remaining)
	}
	return fmt.Sprintf("epoch %d refused: %s; %s", r.Number, strings.Join(r.Reasons, "; "), serves)
}

// Unwrap returns the cause: ErrStopping, errAborted, or the error because of which the attempt
// failed.
func (r *AttemptError) Unwrap() error { return r.cause }

// Errors of this package.
var (
	// error of Run; outriderd then exits with code 75
	ErrRestartsExhausted = errors.New("gave up restarting Envoy")
	// error of Apply during a stop
	ErrStopping = errors.New("the agent is stopping")
	// error of Apply after Abort
	errAborted = errors.New("aborted on request")
	// error of Drain and Undrain
	errNotLive = errors.New("no epoch is live")
	// error of every call after the end of Run
	errEnded   = errors.New("the supervisor has ended")
	ErrNoEpoch = errors.New("there is no running epoch of this number") // error of Abort
)
