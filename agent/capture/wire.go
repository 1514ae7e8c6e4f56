package capture

import "time"

// The client sends requests in the frames of package rpc. outrider-capture answers each request
// with the request's number, and sends its status without a number when the status changes.

// protocolVersion grows when the meaning of a message changes. Up to version 2, messages were JSON
// lines. In version 1, fail_closed includes the meaning of inbound_closed.
const protocolVersion = 3

type operation string

const (
	opApply    operation = "apply"    // new settings, in force once Envoy serves
	opWithdraw operation = "withdraw" // remove the rules until the next apply
	opTry      operation = "try"      // start a trial: the rules are in force for a limited time
	opConfirm  operation = "confirm"  // end a trial; the rules stay in force
	opStatus   operation = "status"
	opStop     operation = "stop" // forget the settings and exit
)

type request struct {
	Protocol  int           `json:"protocol"`
	Number    uint64        `json:"number"`
	Operation operation     `json:"operation"`
	Settings  *Settings     `json:"settings,omitempty"` // of opApply
	For       time.Duration `json:"for,omitempty"`      // of opTry, in nanoseconds
}

type response struct {
	Number uint64  `json:"number,omitempty"` // of the request; 0: the status has changed
	Error  string  `json:"error,omitempty"`
	Status *Status `json:"status,omitempty"`
}

// RequestNumber implements rpc.Response.
func (r response) RequestNumber() (uint64, bool) { return r.Number, false }
