package capture

import "time"

// The client sends requests in the frames of package rpc. The helper answers each with its number,
// and sends its status without a number when it changes.

// protocolVersion grows when a message changes its meaning. Up to 2, the messages were JSON lines.
// In protocol 1, fail_closed has the meaning of inbound_closed, too.
const protocolVersion = 3

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

// Request implements rpc.Response.
func (r response) Request() (uint64, bool) { return r.Number, false }
