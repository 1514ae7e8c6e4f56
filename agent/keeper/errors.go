package keeper

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Errors of Dial and of the methods of Client, for errors.Is.
var (
	ErrNotRunning = errors.New("no keeper is running")
	ErrBusy       = errors.New("the keeper serves another agent")
	errVersion    = errors.New("the keeper speaks another protocol version")
	ErrClosed     = errors.New("the connection to the keeper is closed")
)

// BusyError is an ErrBusy with the pid of the connected agent.
type BusyError struct{ PID int }

func (e *BusyError) Error() string {
	return fmt.Sprintf("the keeper serves another agent (pid %d); stop that one first", e.PID)
}

// Is makes errors.Is(err, ErrBusy) true.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// VersionError is an errVersion with both versions. Upgrade resolves it if the installed keeper is
// newer than the running one.
type VersionError struct{ Keeper, Agent int }

func (e *VersionError) Error() string {
	return fmt.Sprintf("the keeper speaks protocol version %d, this agent %d; install programs "+
		"of one version, then reload outrider-envoy (SIGUSR2 to the keeper)", e.Keeper, e.Agent)
}

// Is makes errors.Is(err, errVersion) true.
func (e *VersionError) Is(target error) bool { return target == errVersion }

// Code classifies refusals of the keeper. Codes are stable and part of the protocol.
type Code string

// The codes.
const (
	CodeInvalid      Code = "invalid"   // the request is invalid
	CodeBusy         Code = "busy"      // another agent is connected
	CodeVersion      Code = "version"   // no common protocol version
	CodeForbidden    Code = "forbidden" // the user or role may not request this
	CodeIDInUse      Code = "exists"    // the ID is in use
	CodeNotFound     Code = "not-found" // no such process
	CodeExited       Code = "exited"    // the process has exited already
	CodeSocketsInUse Code = "epoch"     // a living epoch uses the same hot-restart sockets
	CodeNoParent     Code = "no-parent" // the parent, which a hot restart needs, does not live
	// The program could not be started: missing, not executable, wrong format.
	CodeCannotExecute   Code = "execute"
	CodeEnvoysLive      Code = "living"     // impossible while Envoys live
	CodeUnknownLayout   Code = "layout"     // shared memory of an Envoy whose layout is unknown
	CodeStopping        Code = "stopping"   // the keeper is about to exit
	CodeLimit           Code = "limit"      // too many calls at the same time
	CodeReexecuteFailed Code = "re-execute" // the keeper could not replace itself and continues
	CodeInternal        Code = "internal"   // a system call failed
)

// Error is a refusal by the keeper.
type Error struct {
	Code     Code   `json:"code"`
	Message  string `json:"message"`
	PID      int    `json:"pid,omitempty"`      // of the agent that is connected, with CodeBusy
	Protocol int    `json:"protocol,omitempty"` // the keeper's, with CodeVersion
}

func (e *Error) Error() string { return "keeper: " + e.Message }

// HasCode reports whether err is a refusal of the keeper with a code.
func HasCode(err error, code Code) bool {
	var refusal *Error
	return errors.As(err, &refusal) && refusal.Code == code
}

func refuse(code Code, format string, arguments ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, arguments...)}
}

// asRefusal converts an error to one that can be sent to the client. An error that is not an *Error
// gets CodeInternal.
func asRefusal(err error) *Error {
	var refusal *Error
	if errors.As(err, &refusal) {
		return refusal
	}
	return &Error{Code: CodeInternal, Message: err.Error()}
}

// codeOfFork distinguishes a program that cannot be executed from a temporary lack of resources.
func codeOfFork(err error) Code {
	for _, transient := range []error{unix.EAGAIN, unix.ENOMEM, unix.ENFILE, unix.EMFILE,
		unix.ETXTBSY, errShutDown} {
		if errors.Is(err, transient) {
			return CodeInternal
		}
	}
	return CodeCannotExecute
}
