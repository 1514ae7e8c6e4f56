// Package keeper owns Envoy. Its server side (Command, cmd/outrider-keeper) forks every Envoy from
// its main thread, reaps and signals them, always reads their log pipes, repairs what a failed hot
// restart leaves behind, stands in for a parent that died too early, and re-executes itself in
// place for upgrades. Its client side (Dial, StartKeeper) is what the agent uses, over a Unix
// socket whose protocol carries a version. Agents come and go; Envoy does not notice.
//
// The keeper decides nothing: which epoch to start, when to drain and what to do about an exit is
// the agent's business.
package keeper

import (
	"encoding/json"
	"time"
)

// ProtocolVersion is what this code speaks; both sides send theirs first. It grows when a message
// changes its meaning; a field that may be missing on either side does not count.
const ProtocolVersion = 1

// Bounds of what travels and of what is kept, so that neither an agent nor an Envoy can make the
// keeper grow.
const (
	MaxFrame     = 1 << 20   // bytes of one message
	MaxNote      = 64 << 10  // bytes of an agent's note on a process
	MaxLine      = 4 << 10   // bytes of one log line; the rest of it is cut
	LastLines    = 20        // lines kept of each process until it is forgotten
	MaxKeptLines = 4096      // lines kept in all while no agent reads them …
	MaxKeptBytes = 1 << 20   // … and their bytes
	MaxOutput    = 256 << 10 // bytes of stdout, and of stderr, of a command that Run ran
	MaxExits     = 64        // exits kept until forgotten; the oldest goes first
	MaxRuns      = 8         // commands run at the same time
	MaxCalls     = 32        // commands and measurements that a connection waits for
)

// Info is what a keeper is and where it lets Envoy put its files.
type Info struct {
	Protocol   int       `json:"protocol"`
	Version    string    `json:"version"`
	PID        int       `json:"pid"`
	UID        int       `json:"uid"` // Envoy's too
	GID        int       `json:"gid"`
	Groups     []int     `json:"groups,omitempty"` // supplementary ones
	Started    time.Time `json:"started"`
	Reexecuted int       `json:"reexecuted"` // how often it has replaced itself since
	BaseID     uint32    `json:"base_id"`    // of lineage 0; see BaseIDOf
	Folder     string    `json:"folder"`     // Envoy's admin sockets belong here
	SocketPath string    `json:"socket_path"`
	// SocketPath is Envoy's --socket-path: <SocketPath>_{parent,child,udp_parent,udp_child}_<base
	// id*10 + epoch%3>
}

// Lineages is how many lineages there are. A lineage is the Envoys that hot-restart from one
// another; one that is started beside another, because it cannot take over from it, founds the
// next.
const Lineages = 8

// lineageStride is far from what people and other keepers choose beside this base id.
const lineageStride = 53_687_091

// BaseIDOf is Envoy's --base-id in a lineage, from 0: lineages share neither memory nor sockets.
func (i Info) BaseIDOf(lineage int) uint32 {
	return uint32((uint64(i.BaseID) + uint64(lineage)*lineageStride) % (maxBaseID + 1))
}

// StartSpec asks for an Envoy.
type StartSpec struct {
	// Names the process from now on; 1 to 64 bytes, unique until forgotten.
	ID string `json:"id"`
	// Envoy's --restart-epoch (without hot restart: any number the agent likes).
	Epoch int `json:"epoch"`
	// Number is the epoch as people count it, whatever its lineage; log lines carry it.
	Number  int    `json:"number"`
	Lineage int    `json:"lineage,omitempty"` // with HotRestart: 0 to Lineages-1
	Path    string `json:"path"`              // absolute
	// Args are the arguments after the program's name. They must agree with Epoch, HotRestart, the
	// lineage's base id and the keeper's SocketPath.
	Args       []string        `json:"args"`
	Env        []string        `json:"env"`         // the whole environment, "KEY=value"
	HotRestart bool            `json:"hot_restart"` // false: started with --disable-hot-restart
	Note       json.RawMessage `json:"note,omitempty"`
}

// Process is an Envoy that lives, or has exited and was not forgotten.
type Process struct {
	ID         string          `json:"id"`
	Epoch      int             `json:"epoch"`
	Number     int             `json:"number"`
	Lineage    int             `json:"lineage,omitempty"`
	PID        int             `json:"pid"`
	Path       string          `json:"path"`
	HotRestart bool            `json:"hot_restart"`
	Started    time.Time       `json:"started"`
	Exit       *Exit           `json:"exit,omitempty"`
	LastLines  []string        `json:"last_lines,omitempty"` // oldest first, without line ends
	Note       json.RawMessage `json:"note,omitempty"`
	// Its parent died early and the keeper stands in for it.
	Rescued bool `json:"rescued,omitempty"`

	// Only from Measure, and only while it lives.
	MemoryBytes uint64 `json:"memory_bytes,omitempty"` // resident
	// Established TCP connections, upstream and admin ones included.
	Connections uint64 `json:"connections,omitempty"`
	// Connections of clients, TCP or of Unix sockets; nil: an older keeper, which does not tell.
	Downstream *uint64 `json:"downstream,omitempty"`
	// It has a socket of a TCP or UDP listener: clients may connect or be served unseen.
	Listening bool `json:"listening,omitempty"`
}

// Exit is how a process ended.
type Exit struct {
	Code     int       `json:"code"`             // exit code; -1 when a signal ended it
	Signal   string    `json:"signal,omitempty"` // "SIGABRT"; "" when it exited
	CoreDump bool      `json:"core_dump,omitempty"`
	At       time.Time `json:"at"`
}

// Log is a batch of lines of one process.
type Log struct {
	ID    string   `json:"id"`
	Epoch int      `json:"epoch"`           // its Number
	Lines []string `json:"lines,omitempty"` // oldest first, without line ends
	// Lines of this process lost before these, because nobody took them.
	Dropped uint64 `json:"dropped,omitempty"`
}

// Event is pushed to the connected agent; one of its fields is set. An exit may overtake log lines
// of the same process; it brings its last lines along.
type Event struct {
	Exited *Process `json:"exited,omitempty"`
	Log    *Log     `json:"log,omitempty"`
}

// RunResult is what a short command said.
type RunResult struct {
	Stdout, Stderr []byte // at most MaxOutput each
	Truncated      bool   // it said more
	Exit           Exit
	TimedOut       bool // it was killed when its time was over
}
