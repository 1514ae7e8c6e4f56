package bus

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/godbus/dbus/v5"
)

// The bus and polkit as objects of the bus.
const (
	busName         = "org.freedesktop.DBus"
	polkitName      = "org.freedesktop.PolicyKit1"
	polkitPath      = dbus.ObjectPath("/org/freedesktop/PolicyKit1/Authority")
	polkitInterface = "org.freedesktop.PolicyKit1.Authority"
)

// How long answers are waited for.
const (
	busTime         = 5 * time.Second  // of the bus itself
	polkitTime      = 10 * time.Second // of polkit, which may have to be started
	interactiveTime = 2 * time.Minute  // of a person with a password
)

// polkitInteraction is polkit's flag AllowUserInteraction.
const polkitInteraction uint32 = 1

// authority asks who somebody is and what polkit lets them do.
type authority struct {
	conn        *dbus.Conn
	limit       time.Duration // of polkit's answer
	interactive time.Duration // the same where a person is asked
	counter     atomic.Uint64 // of questions that can be taken back
}

func newAuthority(conn *dbus.Conn) *authority {
	return &authority{conn: conn, limit: polkitTime, interactive: interactiveTime}
}

// user is the Unix user of a connection.
func (a *authority) user(ctx context.Context, sender string) (uint32, error) {
	ctx, cancel := context.WithTimeout(ctx, busTime)
	defer cancel()
	var uid uint32
	err := a.conn.BusObject().CallWithContext(ctx, busName+".GetConnectionUnixUser", 0, sender).Store(&uid)
	if err != nil {
		return 0, fmt.Errorf("ask the bus who %s is: %w", sender, err)
	}
	return uid, nil
}

// polkitResult is (bba{ss}).
type polkitResult struct {
	Authorized bool
	Challenge  bool // it could be had with a password
	Details    map[string]string
}

// allow asks polkit whether a connection may do what an action stands for. interactive: the caller is ready to wait for a
// person to be asked for a password. nil is yes.
func (a *authority) allow(ctx context.Context, sender, action string, interactive bool) error {
	limit, flags, ticket := a.limit, uint32(0), ""
	if interactive {
		limit, flags = a.interactive, polkitInteraction
		ticket = "outrider-" + strconv.FormatUint(a.counter.Add(1), 10)
	}
	asking, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	subject := struct {
		Kind    string
		Details map[string]dbus.Variant
	}{"system-bus-name", map[string]dbus.Variant{"name": dbus.MakeVariant(sender)}}
	polkit := a.conn.Object(polkitName, polkitPath)
	var result polkitResult
	err := polkit.CallWithContext(asking, polkitInterface+".CheckAuthorization", 0,
		subject, action, map[string]string{}, flags, ticket).Store(&result)
	switch {
	case err == nil && result.Authorized:
		return nil
	case err == nil && result.Challenge && !interactive:
		return &Error{Name: errorInteractive, Message: "not authorised: " + action + " needs a password, and the caller did not allow to ask for it"}
	case err == nil:
		return notAuthorized("not authorised: polkit does not allow " + action)
	case asking.Err() != nil:
		if ticket != "" {
			polkit.Go(polkitInterface+".CancelCheckAuthorization", dbus.FlagNoReplyExpected, nil, ticket)
		}
		return notAuthorized(fmt.Sprintf("not authorised: polkit did not answer within %s", limit))
	case isNamed(err, "org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner", "org.freedesktop.DBus.Error.Spawn."):
		return notAuthorized("not authorised: polkit is not there, so only root may do this")
	default:
		return notAuthorized(fmt.Sprintf("not authorised: polkit could not decide: %v", err))
	}
}
