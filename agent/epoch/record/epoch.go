// Package record describes epochs to everything that shows or stores them: status, the command line
// interface, D-Bus and the note in the keeper.
package record

import "time"

// State is the state of an epoch.
type State string

// The states. PublicState maps them to the four states that users see.
const (
	StateStarting    State = "starting"     // the process is started and not live yet
	StateLive        State = "live"         // the epoch serves
	StateHandingOver State = "handing over" // serves, and its successor starts or has failed
	StateDraining    State = "draining"     // the epoch was replaced and ends its connections
	StateStopping    State = "stopping"     // completes requests in flight for the agent's stop
	StateExited      State = "exited"       // the process has ended
)

// Serves reports whether an epoch of this state is the one that serves.
func (s State) Serves() bool {
	return s == StateLive || s == StateHandingOver ||
		s == StateStopping
}

// PublicState returns the state as users see it: starting, live, draining or exited.
func (s State) PublicState() State {
	if s.Serves() {
		return StateLive
	}
	return s
}

// MarshalText encodes the state as users see it.
func (s State) MarshalText() ([]byte, error) { return []byte(s.PublicState()), nil }

// Mode says how an epoch came to serve.
type Mode string

// The modes.
const (
	FirstStart Mode = "first"        // no other epoch served before
	HotRestart Mode = "hot-restart"  // hot restart from the previous epoch
	SideBySide Mode = "side-by-side" // starts beside the previous epoch, which is then drained
	// no new epoch: the live one already has the requested configuration
	NoNewEpoch Mode = "unchanged"
)

// Epoch is one Envoy process with its number. Its JSON is that of the agent's private socket.
type Epoch struct {
	ID            string    `json:"-"` // identifies the process; Number may be reused
	Number        int       `json:"number"`
	State         State     `json:"state"`
	PID           int       `json:"pid,omitempty"`
	Mode          Mode      `json:"mode,omitempty"`
	Reason        string    `json:"reason,omitempty"` // why the epoch was started
	BootstrapPath string    `json:"bootstrap_path,omitempty"`
	Started       time.Time `json:"started,omitzero"`
	LiveSince     time.Time `json:"live,omitzero"`        // zero: never became live
	Exited        time.Time `json:"exited,omitzero"`      // zero: still runs
	ExitCause     string    `json:"exit_cause,omitempty"` // how the process ended, for people
	ExitStatus    int       `json:"exit_status,omitempty"`
	ExitSignal    string    `json:"exit_signal,omitempty"` // such as "SIGKILL"

	Connections uint64 `json:"connections"`  // of clients; 0 if not measured
	MemoryBytes uint64 `json:"memory_bytes"` // 0 if not measured

	RestartEpoch      int       `json:"-"`
	Lineage           int       `json:"-"`
	SpecDigest        string    `json:"-"` // of the epoch's Spec
	MeshNamespace     string    `json:"-"` // of the epoch's Spec
	AdminAddress      string    `json:"-"`
	LatestDrainEnd    time.Time `json:"-"` // end of the drain at the latest; zero: unknown
	AdminLost         bool      `json:"-"` // the epoch serves without an admin interface
	AdminUnresponsive bool      `json:"-"` // the admin interface does not answer
	// A hot restart from this epoch failed, so Envoy may have closed its listeners.
	ListenersMaybeClosed bool          `json:"-"`
	DrainRequested       bool          `json:"-"` // a drain was requested
	DrainTime            time.Duration `json:"-"` // from the drain request until the listeners close
	ListenersCloseAt     time.Time     `json:"-"` // time at which the listeners close; zero: not confirmed
	// why a requested epoch cannot start yet; "": none is waiting
	NextEpochWaitReason string `json:"-"`
}

// HalfDrainedAt returns when half of a requested drain is over; zero if none was requested.
func (e Epoch) HalfDrainedAt(now time.Time) time.Time {
	switch {
	case !e.DrainRequested:
		return time.Time{}
	case e.ListenersCloseAt.IsZero(): // not confirmed
		return now.Add(e.DrainTime / 2)
	}
	return e.ListenersCloseAt.Add(-e.DrainTime / 2)
}
