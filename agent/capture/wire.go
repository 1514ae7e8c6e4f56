package capture

import "time"

// The client sends requests in the frames of package rpc. The helper answers each request with the
// request's number, and sends its status without a number when the status changes.

// protocolVersion grows when the meaning of a message changes. Up to version 2, messages were JSON
// lines. In version 1, fail_closed includes the meaning of inbound_closed.
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

// RequestNumber implements rpc.Response.
func (r response) RequestNumber() (uint64, bool) { return r.Number, false }
