package keeper

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// A message is a frame: its length (4 bytes, big endian, 1 to MaxFrame) and that many bytes of
// JSON. Both sides send a hello. Then the agent sends requests. The keeper answers them by number,
// in any order and possibly in several frames (More), and pushes events. Hello and the operation
// "re-execute" never change, so that an agent of any version can replace a keeper of any other.

const frameHeader = 4

// role is what a client may do.
type role string

const (
	roleAgent   role = "agent"   // everything, and receives the events; one at a time
	roleUpgrade role = "upgrade" // re-execute only, whatever its protocol version
)

// hello is the first message of both sides.
type hello struct {
	Protocol int    `json:"protocol"`
	Role     role   `json:"role,omitempty"`  // of the agent's side
	Info     *Info  `json:"info,omitempty"`  // of the keeper's side
	Error    *Error `json:"error,omitempty"` // of the keeper's side, which then closes
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
	// To is the process that gets the connections (steer).
	To string `json:"to,omitempty"`
	// Closes is the time until the other process closes its listeners (steer).
	Closes time.Duration   `json:"closes,omitempty"`
	Signal int             `json:"signal,omitempty"` // its number
	Note   json.RawMessage `json:"note,omitempty"`
	// Cancel is the number of the run or measurement to cancel.
	Cancel  uint64 `json:"cancel,omitempty"`
	Lineage int    `json:"lineage,omitempty"`
}

type runSpec struct {
	Path    string        `json:"path"`
	Args    []string      `json:"args"`
	Env     []string      `json:"env"`
	Timeout time.Duration `json:"timeout"` // nanoseconds
}

// response is an answer (Number is not 0) or an event.
type response struct {
	Number  uint64     `json:"number,omitempty"`
	More    bool       `json:"more,omitempty"` // further frames of this answer follow
	Error   *Error     `json:"error,omitempty"`
	Process *Process   `json:"process,omitempty"`
	Run     *RunResult `json:"run,omitempty"`
	Done    bool       `json:"done,omitempty"` // clear-initializing: the flag was set
	Event   *Event     `json:"event,omitempty"`
}

// writeFrame sends one message with one write.
func writeFrame(w io.Writer, message any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	if len(body) > MaxFrame {
		return fmt.Errorf("a message of %d bytes is longer than the %d allowed", len(body),
			MaxFrame)
	}
	frame := make([]byte, frameHeader, frameHeader+len(body))
	binary.BigEndian.PutUint32(frame, uint32(len(body)))
	_, err = w.Write(append(frame, body...))
	return err
}

// readFrame receives one message. It allocates what arrives, not what the header announces.
func readFrame(r io.Reader, message any) error {
	var header [frameHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return err
	}
	length := binary.BigEndian.Uint32(header[:])
	if length == 0 || length > MaxFrame {
		return fmt.Errorf("a message of %d bytes: 1 to %d are allowed", length, MaxFrame)
	}
	body, err := io.ReadAll(io.LimitReader(r, int64(length)))
	if err != nil {
		return err
	}
	if len(body) < int(length) {
		return io.ErrUnexpectedEOF
	}
	if err := json.Unmarshal(body, message); err != nil {
		return fmt.Errorf("decode a message: %w", err)
	}
	return nil
}
