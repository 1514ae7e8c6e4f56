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
	polkitTime      = 20 * time.Second // of polkit, which may have to be started; most callers wait for 25 s
	interactiveTime = 2 * time.Minute  // of a person with a password

	// ruleTime is less than the 15 s after which polkit ends the rules of a question and says no. Version 122, Debian 12's,
	// misses the end of rules that took no time once in some thousand questions of a busy machine ("Terminating runaway
	// script after 15 seconds" in its journal); all who ask meanwhile wait.
	ruleTime = 14 * time.Second
)

// polkitInteraction is polkit's flag AllowUserInteraction.
const polkitInteraction uint32 = 1

// authority asks who somebody is and what polkit lets them do.
type authority struct {
	conn        *dbus.Conn
	limit       time.Duration // of polkit's answer
	rules       time.Duration // a no that takes longer is asked again
	interactive time.Duration // of polkit's answer where a person is asked
	counter     atomic.Uint64 // of questions that can be taken back
}

func newAuthority(conn *dbus.Conn) *authority {
	return &authority{conn: conn, limit: polkitTime, rules: ruleTime, interactive: interactiveTime}
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
// person to be asked for a password, which happens where nothing else is left. nil is yes.
func (a *authority) allow(ctx context.Context, sender, action string, interactive bool) error {
	asking, cancel := context.WithTimeout(ctx, a.limit)
	defer cancel()
	begun := time.Now()
	result, err := a.ask(asking, sender, action, "")
	if err == nil && !result.Authorized && !result.Challenge && time.Since(begun) > a.rules {
		result, err = a.ask(asking, sender, action, "")
	}
	limit, given := a.limit, asking
	if err == nil && result.Challenge && interactive {
		limit = a.interactive
		var cancel context.CancelFunc
		given, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
		result, err = a.ask(given, sender, action, "outrider-"+strconv.FormatUint(a.counter.Add(1), 10))
	}
	switch {
	case err == nil && result.Authorized:
		return nil
	case err == nil && result.Challenge && !interactive:
		return &Error{Name: errorInteractive, Message: "not authorised: " + action + " needs a password, and the caller did not allow a prompt for it"}
	case err == nil:
		return notAuthorized("not authorised: polkit does not allow " + action)
	case given.Err() != nil:
		return notAuthorized(fmt.Sprintf("not authorised: polkit did not answer within %s", limit))
	case isNamed(err, "org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner", "org.freedesktop.DBus.Error.Spawn."):
		return notAuthorized("not authorised: polkit is not there, so only root may do this")
	default:
		return notAuthorized(fmt.Sprintf("not authorised: polkit could not decide: %v", err))
	}
}

// ask asks polkit one question. With a ticket it may ask a person, and the question is taken back if no answer comes in time.
func (a *authority) ask(ctx context.Context, sender, action, ticket string) (polkitResult, error) {
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
		polkit.Go(polkitInterface+".CancelCheckAuthorization", dbus.FlagNoReplyExpected, nil, ticket)
	}
	return result, err
}
