// Package keeper owns the Envoy processes. The server (Main, cmd/outrider-keeper) forks every
// Envoy from its main thread, reaps and signals them, reads their log pipes, repairs what a failed
// hot restart leaves behind, and re-executes itself for upgrades. The client (Dial, StartKeeper) is
// the agent's side of a versioned protocol over a Unix socket. Envoys and their logs survive the
// agent.
//
// The keeper makes no decisions: the agent determines which epoch to start, when to drain, and what
// follows an exit.
package keeper

import (
	"encoding/json"
	"net/netip"
	"time"
)

// protocolVersion is exchanged in the first messages of a connection. It grows when the meaning of
// a message changes, not when an optional field is added.
const protocolVersion = 1

// Bounds of messages and queues. They limit the memory that an agent or Envoy can make the keeper
// use.
const (
	maxNote        = 64 << 10  // bytes of an agent's note on a process
	MaxLine        = 4 << 10   // bytes of one log line; the rest is cut
	MaxLastLines   = 20        // lines stored of each process until it is forgotten
	MaxQueuedLines = 4096      // lines queued in total while no agent reads
	MaxQueuedBytes = 1 << 20   // bytes of queued lines
	maxOutput      = 256 << 10 // bytes of stdout, and of stderr, of a command that Run ran
	maxExits       = 64        // exited processes that are stored; the oldest is forgotten first
	maxRuns        = 8         // commands run at the same time
	maxCalls       = 32        // long requests in progress on one connection
)

// Info describes a keeper and where Envoy must put its files.
type Info struct {
	Protocol   int       `json:"protocol"`
	Version    string    `json:"version"`
	PID        int       `json:"pid"`
	UID        int       `json:"uid"` // of the keeper and of Envoy
	GID        int       `json:"gid"`
	Groups     []int     `json:"groups,omitempty"` // supplementary groups
	Started    time.Time `json:"started"`
	Reexecuted int       `json:"reexecuted"` // how often the keeper has re-executed itself
	BaseID     uint32    `json:"base_id"`    // of lineage 0; see BaseIDOf
	Folder     string    `json:"folder"`     // folder of Envoy's admin sockets
	SocketPath string    `json:"socket_path"`
	// SocketPath is Envoy's --socket-path. Its sockets are named
	// <SocketPath>_{parent,child,udp_parent,udp_child}_<base id*10 + epoch%3>.
}

// MaxLineages is the maximum number of lineages. A lineage is a chain of Envoys that hot-restart
// from one another; an Envoy started side by side begins another lineage.
const MaxLineages = 8

// lineageStride keeps the base IDs of lineages far from those that people and other keepers choose.
const lineageStride = 53_687_091

// BaseIDOf returns Envoy's --base-id in a lineage. Lineages share neither memory nor sockets.
func (i Info) BaseIDOf(lineage int) uint32 {
	return uint32((uint64(i.BaseID) + uint64(lineage)*lineageStride) % (maxBaseID + 1))
}

// StartSpec describes an Envoy to start.
type StartSpec struct {
	// ID identifies the process: 1 to 64 bytes, unique until it is forgotten.
	ID string `json:"id"`
	// RestartEpoch is Envoy's --restart-epoch (without hot restart, any number).
	RestartEpoch int `json:"epoch"`
	// EpochNumber is the number of the epoch that the status shows and log lines contain. It is
	// unique across lineages.
	EpochNumber int    `json:"number"`
	Lineage     int    `json:"lineage,omitempty"` // with HotRestart: 0 to MaxLineages-1
	Path        string `json:"path"`              // absolute path of the binary
	// Args are the arguments after the program's name. They must agree with RestartEpoch,
	// HotRestart, the base ID of the lineage and SocketPath.
	Args       []string        `json:"args"`
	Env        []string        `json:"env"`         // the whole environment, "KEY=value"
	HotRestart bool            `json:"hot_restart"` // false: started with --disable-hot-restart
	Note       json.RawMessage `json:"note,omitempty"`
	// OutriderListeners are the addresses of the listeners in this Envoy that Outrider adds, for
	// metrics and readiness. Connections to them do not count as those of clients.
	OutriderListeners []netip.AddrPort `json:"own,omitempty"`
}

// Process is an Envoy that lives, or that exited and was not forgotten.
type Process struct {
	ID           string          `json:"id"`
	RestartEpoch int             `json:"epoch"`
	EpochNumber  int             `json:"number"`
	Lineage      int             `json:"lineage,omitempty"`
	PID          int             `json:"pid"`
	Path         string          `json:"path"`
	HotRestart   bool            `json:"hot_restart"`
	Started      time.Time       `json:"started"`
	Exit         *Exit           `json:"exit,omitempty"`
	LastLines    []string        `json:"last_lines,omitempty"` // oldest first, without line ends
	Note         json.RawMessage `json:"note,omitempty"`
	// ParentedByKeeper reports whether the parent of this process died during the hot restart, so
	// that the keeper answers the hot-restart messages of this process.
	ParentedByKeeper  bool             `json:"rescued,omitempty"`
	OutriderListeners []netip.AddrPort `json:"own,omitempty"` // as in StartSpec

	// MemoryBytes is the resident size. Like the following fields, it is set by MeasureProcesses
	// only, and only while the process lives.
	MemoryBytes uint64 `json:"memory_bytes,omitempty"`
	// TCPConnections counts established TCP connections, including upstream and admin ones.
	TCPConnections uint64 `json:"connections,omitempty"`
	// ClientConnections counts connections of clients, TCP or Unix, without those of
	// OutriderListeners. It is the number that users see and that a reload or a stop waits for.
	ClientConnections uint64 `json:"downstream,omitempty"`
	// HasListeners reports whether the process has an open socket of a TCP or UDP listener.
	HasListeners bool `json:"listening,omitempty"`
}

// Exit describes how a process ended.
type Exit struct {
	Code     int       `json:"code"`             // exit code; -1 when a signal ended it
	Signal   string    `json:"signal,omitempty"` // "SIGABRT"; "" when it exited
	CoreDump bool      `json:"core_dump,omitempty"`
	At       time.Time `json:"at"`
	// KilledAtKeeperExit reports whether the process exited while the keeper was stopping, which
	// terminates all processes.
	KilledAtKeeperExit bool `json:"with_keeper,omitempty"`
}

// LogLines is a batch of lines of one process.
type LogLines struct {
	ID          string   `json:"id"`
	EpochNumber int      `json:"epoch"`           // as in StartSpec
	Lines       []string `json:"lines,omitempty"` // oldest first, without line ends
	// Dropped counts lines of this process that were lost before these.
	Dropped uint64 `json:"dropped,omitempty"`
}

// Event is sent to the connected agent without a request; one of its fields is set. The event of an
// exit may arrive before log lines of the same process, but it includes the last lines.
type Event struct {
	Exited *Process  `json:"exited,omitempty"`
	Log    *LogLines `json:"log,omitempty"`
}

// RunResult is the result of a short command.
type RunResult struct {
	Stdout, Stderr []byte // at most maxOutput each
	Truncated      bool   // the output was longer
	Exit           Exit
	TimedOut       bool // the command was killed at its time-out
}
