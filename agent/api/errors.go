package api

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Error is an error response, encoded as {"error": …, "reasons": […]}.
type Error struct {
	Status  int      `json:"-"` // HTTP status
	Message string   `json:"error"`
	Reasons []string `json:"reasons,omitempty"`
}

// Error returns the message and its reasons, one per line.
func (e *Error) Error() string {
	return strings.Join(append([]string{e.Message}, e.Reasons...), "\n")
}

// NewRefusal returns an error with status 409: the request is valid but cannot be performed now.
func NewRefusal(message string, reasons ...string) *Error {
	return &Error{Status: http.StatusConflict, Message: message, Reasons: reasons}
}

// NotRunningError reports that no agent listens on the socket.
type NotRunningError struct {
	Socket string
	Err    error
}

func (e *NotRunningError) Error() string {
	return fmt.Sprintf("the agent is not running: nobody answers on %s: %v", e.Socket, e.Err)
}

func (e *NotRunningError) Unwrap() error { return e.Err }

// The exit codes of `outrider`.
const (
	ExitDone          = 0
	ExitRefused       = 1 // the agent refused the request
	ExitUsage         = 2
	ExitNotRunning    = 3
	ExitNotAuthorised = 4
)

// ExitCode returns the exit code for an error of a Client.
func ExitCode(err error) int {
	if err == nil {
		return ExitDone
	}
	if _, ok := errors.AsType[*NotRunningError](err); ok {
		return ExitNotRunning
	}
	if e, ok := errors.AsType[*Error](err); ok && e.Status == http.StatusForbidden {
		return ExitNotAuthorised
	}
	return ExitRefused
}

// asError returns the *Error in err, or one with status 500 and the text of err.
func asError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		answer := *e
		if answer.Status < http.StatusBadRequest {
			answer.Status = http.StatusInternalServerError
		}
		return &answer
	}
	return &Error{Status: http.StatusInternalServerError, Message: err.Error()}
}
