package bus

import (
	"errors"
	"fmt"
	"strings"

	"github.com/godbus/dbus/v5"
)

// errorPrefix begins the names of the agent's own errors.
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

// The errors that D-Bus itself defines.
const (
	errorUnknownObject    = "org.freedesktop.DBus.Error.UnknownObject"
	errorUnknownInterface = "org.freedesktop.DBus.Error.UnknownInterface"
	errorUnknownMethod    = "org.freedesktop.DBus.Error.UnknownMethod"
	errorUnknownProperty  = "org.freedesktop.DBus.Error.UnknownProperty"
	errorReadOnly         = "org.freedesktop.DBus.Error.PropertyReadOnly"
	errorInvalidArgs      = "org.freedesktop.DBus.Error.InvalidArgs"
	// errorInteractive tells a caller that did not allow it that it would be asked for a password.
	errorInteractive = "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"
)

// Error is what a caller is told in place of an answer.
type Error struct {
	Name    string // of D-Bus: org.outrider.Agent1.Error.Refused
	Message string // for people
}

// Error is the message.
func (e *Error) Error() string { return e.Message }

// Refused is an error of a request that was understood and will not be done now.
func Refused(message string) *Error { return own(nameRefused, message) }

// InvalidArgument is an error of a request whose arguments make no sense.
func InvalidArgument(message string) *Error { return own(nameInvalidArgument, message) }

// NoSuchEpoch is an error of a request about an epoch that there is not.
func NoSuchEpoch(number int) *Error {
	return own(nameNoSuchEpoch, fmt.Sprintf("there is no epoch %d", number))
}

// Busy is an error of a request that may succeed later.
func Busy(message string) *Error { return own(nameBusy, message) }

func notAuthorized(message string) *Error { return own(nameNotAuthorized, message) }

func own(name, message string) *Error { return &Error{Name: errorPrefix + name, Message: message} }

// asError is the *Error in err, or one that only says what err says.
func asError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return own(nameFailed, err.Error())
}

// isNamed says whether err came over the bus under one of the names; one that ends with a dot stands for all that begin so.
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
