package epoch

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// LaunchInput has the values, besides the configuration, that an epoch's bootstrap and command line
// depend on.
type LaunchInput struct {
	Number        int    // the epoch as users count it; names files and the admin socket
	RestartEpoch  int    // --restart-epoch
	Lineage       int    // slot from 0; lineages that live at the same time have different ones
	HotRestart    bool   // false: --disable-hot-restart
	BootstrapPath string // -c
}

// Command is a command line that the keeper executes.
type Command struct {
	Path string   `json:"path"`
	Args []string `json:"args"` // without the program's name
	Env  []string `json:"env"`  // KEY=value
}

// Spec describes a wanted Envoy. Its functions may be called concurrently and must be pure.
type Spec struct {
	// Hash identifies the Envoy: specs of equal hash differ at most in settings that need no new
	// epoch, see RenewSpec.
	Hash string

	Bootstrap  func(LaunchInput) ([]byte, error)  // content of LaunchInput.BootstrapPath
	Command    func(LaunchInput) (Command, error) // the command line that runs it
	Validation func(LaunchInput) (Command,
		error) // the one of --mode validate; nil: no validation
	AdminAddress func(LaunchInput) string // of its admin interface; see Options.Admin

	HotRestartVersion string // of the binary ("11.104"); "": it has no hot restart

	Namespace string // of the mesh, as the proxy reports it; "": not known

	Own []netip.AddrPort // Outrider's own listeners: their connections are not clients'

	LiveTimeout    time.Duration // an epoch that is not live by then is aborted
	Drain          time.Duration // --drain-time-s: of this epoch once it is replaced
	ParentShutdown time.Duration // --parent-shutdown-time-s: after it was live, it ends its parent

	adopted *adoptedSpec // not nil: of an adopted epoch; see makeStartable
}

// Request is a request for a new epoch.
type Request struct {
	Spec      *Spec
	Reason    string // for people: "reload", "file changed: /etc/…"
	IfChanged bool   // do nothing if a live epoch has the same hash
	// Abort names draining epochs to kill, which cuts their clients' connections, so that the
	// request need not wait for them. They are killed once Envoy has accepted the configuration
	// (Validation), and only if no other epoch drains.
	Abort []int

	// OnWait, if not nil, is called when the request has to wait, and whenever reason or end of the
	// wait change. until is the latest end; zero: unknown. OnWait must return at once, because all
	// results and conditions wait for it.
	OnWait func(until time.Time, why string)
}

// Result is the outcome of a request that was not refused.
type Result struct {
	Epoch    int // the live epoch now
	Previous int // the one that served before; -1 = none; = Epoch if Unchanged
	Mode     Mode
}

// RefusedError is the error of a request that changed nothing.
type RefusedError struct {
	Number    int      // the epoch that was tried
	Remaining int      // the epoch that continues to serve; -1: none
	Reasons   []string // sentences, the deciding one first
	LastLines []string // the failed epoch's last log lines, if it was started

	cause error
}

// Error returns one line: the attempted epoch, the cause, and the epoch that continues to serve.
func (r *RefusedError) Error() string {
	serves := "no epoch is live"
	if r.Remaining >= 0 {
		serves = fmt.Sprintf("epoch %d continues to serve", r.Remaining)
	}
	return fmt.Sprintf("epoch %d refused: %s; %s", r.Number, strings.Join(r.Reasons, "; "), serves)
}

// Unwrap returns the cause: ErrStopping, ErrAborted, or the error that made the attempt fail.
func (r *RefusedError) Unwrap() error { return r.cause }

// The errors of this package.
var (
	ErrGaveUp   = errors.New("gave up")                                  // of Run; exit code 75
	ErrStopping = errors.New("the agent is stopping")                    // of Apply during a stop
	ErrAborted  = errors.New("aborted on request")                       // of Apply after Abort
	ErrNotLive  = errors.New("no epoch is live")                         // of Drain and Undrain
	ErrEnded    = errors.New("the supervisor has ended")                 // of every call after Run
	ErrNoEpoch  = errors.New("there is no running epoch of this number") // of Abort
)
