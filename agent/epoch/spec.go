package epoch

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Launch is what an epoch's bootstrap and command line depend on beside the configuration.
type Launch struct {
	Number        int    // the epoch as users count it; names files and the admin socket
	RestartEpoch  int    // --restart-epoch
	Lineage       int    // slot from 0: lineages that live at the same time have different ones, so must have different base ids
	HotRestart    bool   // false: --disable-hot-restart
	BootstrapPath string // -c
}

// Command is what the keeper executes.
type Command struct {
	Path string   `json:"path"`
	Args []string `json:"args"` // without the program's name
	Env  []string `json:"env"`  // KEY=value
}

// Spec is an Envoy that is wanted. Its functions are called from helper goroutines and must be pure.
type Spec struct {
	Hash string // of everything that makes a difference; equal hashes are the same Envoy. What may differ yet: see Renew

	Bootstrap    func(Launch) ([]byte, error)  // content of Launch.BootstrapPath
	Command      func(Launch) (Command, error) // the command line that runs it
	Validation   func(Launch) (Command, error) // the one that checks the bootstrap (--mode validate); nil = no validation
	AdminAddress func(Launch) string           // where its admin interface listens; see Options.Admin

	HotRestartVersion string // of the binary ("11.104"); "" = it has no hot restart

	Namespace string // of the mesh, that its proxy says it is in; what it is fed depends on it. "" = not known

	LiveTimeout    time.Duration // an epoch that is not live by then is aborted
	Drain          time.Duration // --drain-time-s: how long this epoch drains once it is replaced
	ParentShutdown time.Duration // --parent-shutdown-time-s: when this epoch, once live, ends the one before it

	adopted *adoptedSpec // not nil: of an adopted epoch; see makeStartable
}

// Request asks for a new epoch.
type Request struct {
	Spec      *Spec
	Reason    string // for people: "reload", "file changed: /etc/…"
	IfChanged bool   // an epoch of the same hash that is live will do

	// OnWait is told, if not nil, that the request has to wait, until when at the latest (zero: not known yet) and for
	// what; again whenever that changes. It is called by the supervisor's own goroutine and must return at once.
	OnWait func(until time.Time, why string)
}

// Result is the outcome of a request that was not refused.
type Result struct {
	Epoch    int // the live epoch now
	Previous int // the one that served before; -1 = none; = Epoch if Unchanged
	Mode     Mode
}

// Refused is the error of a request that changed nothing.
type Refused struct {
	Number    int      // the epoch that was tried
	Remaining int      // the epoch that goes on serving; -1 = none
	Reasons   []string // sentences, the deciding one first
	LastLines []string // the tried epoch's last log lines, if it was started

	cause error
}

// Error is one line: what was tried, why it failed, what goes on.
func (r *Refused) Error() string {
	goesOn := "no epoch is live"
	if r.Remaining >= 0 {
		goesOn = fmt.Sprintf("epoch %d goes on", r.Remaining)
	}
	return fmt.Sprintf("epoch %d refused: %s; %s", r.Number, strings.Join(r.Reasons, "; "), goesOn)
}

// Unwrap gives the cause to errors.Is: ErrStopping, ErrAborted, or what a part returned.
func (r *Refused) Unwrap() error { return r.cause }

// The errors of this package.
var (
	ErrGaveUp   = errors.New("gave up")                                  // of Run; exit code 75
	ErrStopping = errors.New("the agent is stopping")                    // of Apply while Stop is under way
	ErrAborted  = errors.New("aborted on request")                       // of Apply whose epoch was ended by Abort
	ErrNotLive  = errors.New("no epoch is live")                         // of Drain and Undrain
	ErrNoEpoch  = errors.New("there is no running epoch of this number") // of Abort
	ErrEnded    = errors.New("the supervisor has ended")                 // of every call after Run returned
)
