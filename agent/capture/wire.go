package capture

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// The protocol: JSON lines over a Unix stream socket. The client sends requests. The helper answers
// each with its number, and sends its status without a number when it changes.

// protocolVersion grows when a message changes its meaning. In protocol 1 fail_closed has the
// meaning of inbound_closed, too, which a helper of protocol 1 does not know: it refuses protocol
// 2.
const (
	protocolVersion = 2
	oldestProtocol  = 1 // of agents that are served
)

const maxLine = 1 << 20 // bytes of a message

type operation string

const (
	opApply    operation = "apply"    // new settings, in force once Envoy serves
	opWithdraw operation = "withdraw" // remove the rules until the next apply
	opTry      operation = "try"      // in force for a time
	opConfirm  operation = "confirm"  // a trial stays in force
	opStatus   operation = "status"
	opStop     operation = "stop" // forget the settings and exit
)

type request struct {
	Protocol  int           `json:"protocol"`
	Number    uint64        `json:"number"`
	Operation operation     `json:"operation"`
	Settings  *Settings     `json:"settings,omitempty"` // apply
	For       time.Duration `json:"for,omitempty"`      // try, in nanoseconds
}

type response struct {
	Number uint64  `json:"number,omitempty"` // 0: a change
	Error  string  `json:"error,omitempty"`
	Status *Status `json:"status,omitempty"`
}

func writeLine(w io.Writer, message any) error {
	line, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	if len(line) >= maxLine {
		return fmt.Errorf("a message of %d bytes is longer than the %d allowed", len(line), maxLine)
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

func newLineReader(r io.Reader) *bufio.Scanner {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4<<10), maxLine)
	return lines
}

func readLine(lines *bufio.Scanner, message any) error {
	if !lines.Scan() {
		if err := lines.Err(); err != nil {
			return err
		}
		return io.EOF
	}
	if err := json.Unmarshal(lines.Bytes(), message); err != nil {
		return fmt.Errorf("decode a message: %w", err)
	}
	return nil
}
