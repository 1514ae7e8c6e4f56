package api

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Error is an answer other than what was asked for. It travels as {"error": …, "reasons": […]}.
type Error struct {
	Status  int      `json:"-"` // HTTP status
	Message string   `json:"error"`
	Reasons []string `json:"reasons,omitempty"`
}

// Error is the message and its reasons, one a line.
func (e *Error) Error() string {
	return strings.Join(append([]string{e.Message}, e.Reasons...), "\n")
}

// Refuse is an error of a request that the agent understood and will not do now (409).
func Refuse(message string, reasons ...string) *Error {
	return &Error{Status: http.StatusConflict, Message: message, Reasons: reasons}
}

// NotRunningError says that nobody answers on the socket.
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
	ExitRefused       = 1 // the agent said no
	ExitUsage         = 2
	ExitNotRunning    = 3
	ExitNotAuthorised = 4
)

// ExitCode is the exit code that an error of a Client calls for.
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

// asError is the *Error in err, or one of status 500 with its text.
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
