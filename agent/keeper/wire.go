package keeper

import (
	"encoding/json"
	"time"

	"outrider.org/outrider/agent/access"
)

// Messages of the protocol; package rpc frames them. Both sides send a hello. Then the agent sends
// requests. The keeper answers them by number, in any order and possibly in several messages
// (More), and sends events. Frames, hello and the operation "re-execute" never change, so that an
// agent of any version can replace a keeper of any other.

// role determines the operations of a client.
type role string

const (
	roleAgent   role = "agent"   // all operations and events; one client at a time
	roleUpgrade role = "upgrade" // re-execute only; any protocol version
)

// hello is the first message of both sides.
type hello struct {
	Protocol int    `json:"protocol"`
	Role     role   `json:"role,omitempty"`  // sent by the client
	Info     *Info  `json:"info,omitempty"`  // sent by the keeper
	Error    *Error `json:"error,omitempty"` // sent by the keeper, which then closes the connection
}

// The operations.
const (
	operationStart             = "start"
	operationSignal            = "signal"
	operationList              = "list"
	operationMeasure           = "measure"
	operationStopAccepting     = "close-doors"
	operationSteer             = "steer"
	operationAnnotate          = "annotate"
	operationForget            = "forget"
	operationRun               = "run"
	operationAccess            = "access"
	operationCancel            = "cancel"
	operationClearInitializing = "clear-initializing"
	operationCleanup           = "cleanup"
	operationShutdown          = "shutdown"
	operationReexecute         = "re-execute"
)

// request is sent by the agent.
type request struct {
	Number    uint64     `json:"number"` // chosen by the agent, not 0
	Operation string     `json:"operation"`
	Start     *StartSpec `json:"start,omitempty"`
	Run       *runSpec   `json:"run,omitempty"`
	ID        string     `json:"id,omitempty"` // of a process
	// To is the ID of the process that is to receive the connections (operation steer).
	To string `json:"to,omitempty"`
	// Closes is the time until the process with this ID closes its listeners (operation steer).
	Closes time.Duration   `json:"closes,omitempty"`
	Signal int             `json:"signal,omitempty"` // signal number
	Note   json.RawMessage `json:"note,omitempty"`
	// Cancel is the number of the run or measurement to cancel.
	Cancel  uint64 `json:"cancel,omitempty"`
	Lineage int    `json:"lineage,omitempty"`
	Path    string `json:"path,omitempty"` // of a file (access)
}

type runSpec struct {
	Path    string        `json:"path"`
	Args    []string      `json:"args"`
	Env     []string      `json:"env"`
	Timeout time.Duration `json:"timeout"` // nanoseconds
}

// response is an answer (Number is not 0) or an event.
type response struct {
	Number  uint64         `json:"number,omitempty"`
	More    bool           `json:"more,omitempty"` // further messages of this answer follow
	Error   *Error         `json:"error,omitempty"`
	Process *Process       `json:"process,omitempty"`
	Run     *RunResult     `json:"run,omitempty"`
	Access  *access.Result `json:"access,omitempty"`
	Done    bool           `json:"done,omitempty"` // clear-initializing: the flag was set
	Event   *Event         `json:"event,omitempty"`
}

// RequestNumber implements rpc.Response.
func (r response) RequestNumber() (uint64, bool) { return r.Number, r.More }
