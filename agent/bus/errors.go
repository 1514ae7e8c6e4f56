package bus

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/godbus/dbus/v5"

	"outrider.org/outrider/agent/api"
)

// errorPrefix is the prefix of the agent's error names.
const errorPrefix = "org.outrider.Agent1.Error."

// The names of the agent's own errors, without their prefix.
const (
	nameRefused         = "Refused"
	nameNotAuthorized   = "NotAuthorized"
	nameNoSuchEpoch     = "NoSuchEpoch"
	nameInvalidArgument = "InvalidArgument"
	nameBusy            = "Busy"
	nameFailed          = "Failed"
)

// Standard errors of D-Bus.
const (
	errorUnknownObject    = "org.freedesktop.DBus.Error.UnknownObject"
	errorUnknownInterface = "org.freedesktop.DBus.Error.UnknownInterface"
	errorUnknownMethod    = "org.freedesktop.DBus.Error.UnknownMethod"
	errorUnknownProperty  = "org.freedesktop.DBus.Error.UnknownProperty"
	errorReadOnly         = "org.freedesktop.DBus.Error.PropertyReadOnly"
	errorInvalidArgs      = "org.freedesktop.DBus.Error.InvalidArgs"
	// errorInteractive reports that authorisation requires a password prompt, which the caller did
	// not allow.
	errorInteractive = "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"
)

// Error is a D-Bus error reply.
type Error struct {
	Name    string // D-Bus error name: org.outrider.Agent1.Error.Refused
	Message string // human-readable
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// refusedError returns the error of a valid request that cannot be performed now.
func refusedError(message string) *Error { return own(nameRefused, message) }

// invalidArgumentError returns the error of a request with invalid arguments.
func invalidArgumentError(message string) *Error { return own(nameInvalidArgument, message) }

// noSuchEpochError returns the error of a request about an unknown epoch.
func noSuchEpochError(number int) *Error {
	return own(nameNoSuchEpoch, fmt.Sprintf("there is no epoch %d", number))
}

// busyError returns the error of a request that exceeds a limit and may succeed later.
func busyError(message string) *Error { return own(nameBusy, message) }

func notAuthorized(message string) *Error { return own(nameNotAuthorized, message) }

func own(name, message string) *Error { return &Error{Name: errorPrefix + name, Message: message} }

// asError returns the *Error in err, or one with the text of err. See Backend.
func asError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*api.Error](err); ok {
		switch e.Status {
		case http.StatusBadRequest:
			return invalidArgumentError(e.Error())
		case http.StatusNotFound:
			return own(nameNoSuchEpoch, e.Error())
		}
		return refusedError(e.Error())
	}
	return own(nameFailed, err.Error())
}

// isNamed reports whether err is a D-Bus error with one of the names. A name that ends with a dot
// matches all names with that prefix.
func isNamed(err error, names ...string) bool {
	var found string
	if e, ok := errors.AsType[dbus.Error](err); ok {
		found = e.Name
	} else if e, ok := errors.AsType[*dbus.Error](err); ok {
		found = e.Name
	}
	for _, name := range names {
		if found == name || strings.HasSuffix(name, ".") && strings.HasPrefix(found, name) {
			return true
		}
	}
	return false
}
