package bus

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/godbus/dbus/v5"
)

// D-Bus names of the bus and of polkit.
const (
	busName         = "org.freedesktop.DBus"
	polkitName      = "org.freedesktop.PolicyKit1"
	polkitPath      = dbus.ObjectPath("/org/freedesktop/PolicyKit1/Authority")
	polkitInterface = "org.freedesktop.PolicyKit1.Authority"
)

// Timeouts of replies.
const (
	busTime = 5 * time.Second // timeout of replies from the bus itself
	// polkitTime includes starting polkit. It is below 25 s, the usual timeout of D-Bus callers.
	polkitTime      = 20 * time.Second
	interactiveTime = 2 * time.Minute // timeout of polkit's reply while a user enters a password

	// ruleTime is slightly less than the 15 s after which polkit kills a rule script and denies.
	// polkit 122 (Debian 12) occasionally misses the end of a script under load and logs
	// "Terminating runaway script after 15 seconds". If a denial took longer than ruleTime, the
	// agent therefore repeats the request.
	ruleTime = 14 * time.Second
)

// polkitInteraction is polkit's flag AllowUserInteraction.
const polkitInteraction uint32 = 1

// authority looks up users of connections and requests authorisation from polkit.
type authority struct {
	conn        *dbus.Conn
	limit       time.Duration // timeout of a check
	rules       time.Duration // after a denial that took longer, the check is repeated
	interactive time.Duration // timeout of a check with a password prompt
	counter     atomic.Uint64 // for cancellation IDs
}

func newAuthority(conn *dbus.Conn) *authority {
	return &authority{conn: conn, limit: polkitTime, rules: ruleTime, interactive: interactiveTime}
}

// user returns the UID of a connection.
func (a *authority) user(ctx context.Context, sender string) (uint32, error) {
	ctx, cancel := context.WithTimeout(ctx, busTime)
	defer cancel()
	var uid uint32
	err := a.conn.BusObject().CallWithContext(ctx, busName+".GetConnectionUnixUser", 0,
		sender).Store(&uid)
	if err != nil {
		return 0, fmt.Errorf("get the D-Bus credentials of %s: %w", sender, err)
	}
	return uid, nil
}

// polkitResult is the result of CheckAuthorization, (bba{ss}).
type polkitResult struct {
	Authorized bool
	Challenge  bool // authentication would authorise the caller
	Details    map[string]string
}

// allow returns nil if polkit authorises the connection for the action. With interactive, polkit
// may prompt for a password if the rules require one; the caller waits meanwhile.
func (a *authority) allow(ctx context.Context, sender, action string, interactive bool) error {
	asking, cancel := context.WithTimeout(ctx, a.limit)
	defer cancel()
	begun := time.Now()
	result, err := a.check(asking, sender, action, "")
	if err == nil && !result.Authorized && !result.Challenge && time.Since(begun) > a.rules {
		result, err = a.check(asking, sender, action, "")
	}
	limit, deadline := a.limit, asking
	if err == nil && result.Challenge && interactive {
		limit = a.interactive
		var cancel context.CancelFunc
		deadline, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
		result, err = a.check(deadline, sender, action,
			"outrider-"+strconv.FormatUint(a.counter.Add(1), 10))
	}
	switch {
	case err == nil && result.Authorized:
		return nil
	case err == nil && result.Challenge && !interactive:
		return &Error{Name: errorInteractive, Message: "not authorised: " + action +
			" needs a password, and the caller did not allow a prompt for it"}
	case err == nil:
		return notAuthorized("not authorised: polkit does not allow " + action)
	case deadline.Err() != nil:
		return notAuthorized(fmt.Sprintf("not authorised: polkit did not answer within %s", limit))
	case isNamed(err, "org.freedesktop.DBus.Error.ServiceUnknown",
		"org.freedesktop.DBus.Error.NameHasNoOwner", "org.freedesktop.DBus.Error.Spawn."):
		return notAuthorized("not authorised: polkit is not there, so only root may do this")
	default:
		return notAuthorized(fmt.Sprintf("not authorised: polkit could not decide: %v", err))
	}
}

// check calls CheckAuthorization. A non-empty ticket allows a prompt; it is the cancellation ID
// with which check cancels it when ctx ends.
func (a *authority) check(ctx context.Context, sender, action, ticket string) (polkitResult, error) {
	flags := uint32(0)
	if ticket != "" {
		flags = polkitInteraction
	}
	subject := struct {
		Kind    string
		Details map[string]dbus.Variant
	}{"system-bus-name", map[string]dbus.Variant{"name": dbus.MakeVariant(sender)}}
	polkit := a.conn.Object(polkitName, polkitPath)
	var result polkitResult
	err := polkit.CallWithContext(ctx, polkitInterface+".CheckAuthorization", 0,
		subject, action, map[string]string{}, flags, ticket).Store(&result)
	if ctx.Err() != nil && ticket != "" {
		polkit.Go(polkitInterface+".CancelCheckAuthorization",
			dbus.FlagNoReplyExpected, nil, ticket)
	}
	return result, err
}
