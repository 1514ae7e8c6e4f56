package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/godbus/dbus/v5"
)

// changeTime bounds what a changing method waits for of the agent.
const changeTime = 30 * time.Second

// handler is one method. Its arguments have the types that the XML says.
type handler func(ctx context.Context, c *call) ([]any, error)

// take admits a call that came over the wire once its user is known, or has it refused. It is called by the goroutine that
// reads, so it never waits.
func (s *session) take(message *dbus.Message) {
	c := newCall(message)
	if !s.signatures[c.signature] {
		c.args = nil // of no method: what waits in the queue takes little memory
	}
	switch known, kept := s.callers.identify(c); {
	case known:
		s.admit(c)
	case !kept:
		s.turnAway(c)
	}
}

// admit puts a call whose user is known into its queue, or has it refused. It never waits.
func (s *session) admit(c *call) {
	switch {
	case c.uid == 0 && s.rootCalls.enter(c.sender): // nobody else keeps root from being answered
		s.rootQueue <- c // holds mostRootCalls
	case c.uid != 0 && s.calls.enter(c.uid):
		s.queue <- c // holds mostCalls
	default:
		s.turnAway(c)
	}
}

// turnAway has a call refused.
func (s *session) turnAway(c *call) {
	if c.silent {
		return
	}
	select {
	case s.refused <- c:
	default: // the caller will not hear of it
	}
}

// read answers admitted calls of users until ctx ends.
func (s *session) read(ctx context.Context) {
	for {
		select {
		case c := <-s.queue:
			s.serve(ctx, c)
			s.calls.leave(c.uid)
		case <-ctx.Done():
			return
		}
	}
}

// readRoot answers admitted calls of root until ctx ends.
func (s *session) readRoot(ctx context.Context) {
	for {
		select {
		case c := <-s.rootQueue:
			s.serve(ctx, c)
			s.rootCalls.leave(c.sender)
		case <-ctx.Done():
			return
		}
	}
}

// refuse tells those that were not admitted.
func (s *session) refuse(ctx context.Context) {
	for {
		select {
		case c := <-s.refused:
			s.answer(c, nil, Busy("the agent has too many calls to answer; try again later"))
		case <-ctx.Done():
			return
		}
	}
}

// serve answers a call, or has a goroutine do so if it is one that may take long.
func (s *session) serve(ctx context.Context, c *call) {
	run, method, err := s.find(ctx, c)
	if err == nil && method.takes() != c.signature {
		err = &Error{Name: errorInvalidArgs, Message: fmt.Sprintf("%s.%s takes arguments of the types %q, not %q", c.kind, c.member, method.takes(), c.signature)}
	}
	if err != nil {
		s.answer(c, nil, err)
		return
	}
	action := method.action()
	if action == "" {
		values, err := run(ctx, c)
		s.answer(c, values, err)
		return
	}
	uid := c.uid
	if uid == unknownUser {
		s.answer(c, nil, notAuthorized("not authorised: the bus does not say who the caller is"))
		return
	}
	places := s.changes
	if uid == 0 {
		places = s.rootChanges // nobody else keeps root from acting
	}
	if !places.enter(uid) {
		s.answer(c, nil, Busy("too many requests of this user wait for an answer; try again later"))
		return
	}
	s.running.Go(func() {
		defer places.leave(uid)
		s.change(ctx, c, uid, action, run)
	})
}

// change serves a call that polkit decides about. Root may always.
func (s *session) change(ctx context.Context, c *call, uid uint32, action string, run handler) {
	if uid != 0 {
		if err := s.authority.allow(ctx, c.sender, action, c.interactive); err != nil {
			s.options.Logger.Warn("refused a request over D-Bus", "method", c.member, "uid", uid, "sender", c.sender, "why", err)
			s.answer(c, nil, err)
			return
		}
	}
	s.options.Logger.Info("asked over D-Bus", "method", c.member, "object", string(c.path), "uid", uid, "sender", c.sender)
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	values, err := run(ctx, c)
	s.answer(c, values, err)
}

// find looks for the object and the method that a call means.
func (s *session) find(ctx context.Context, c *call) (handler, *methodOfXML, error) {
	now := s.state.get(ctx)
	object, ok := now.objects[c.path]
	if !ok && len(now.children(c.path)) == 0 {
		return nil, nil, &Error{Name: errorUnknownObject, Message: fmt.Sprintf("there is no object %s", c.path)}
	}
	c.object = object
	known := false
	for _, name := range interfacesOf(c.path, object) {
		if c.kind != "" && c.kind != name {
			continue
		}
		known = true
		if method := s.interfaces[name].method(c.member); method != nil {
			c.kind = name
			return s.handlers[name][c.member], method, nil
		}
	}
	if !known {
		return nil, nil, &Error{Name: errorUnknownInterface, Message: fmt.Sprintf("%s has no interface %s", c.path, c.kind)}
	}
	return nil, nil, &Error{Name: errorUnknownMethod, Message: fmt.Sprintf("%s has no method %s", c.path, c.member)}
}

// interfacesOf are the names of the interfaces that an object has.
func interfacesOf(path dbus.ObjectPath, o object) []string {
	names := []string{peerName, introspectName}
	if o.kind == "" {
		return names
	}
	names = append(names, propertiesName)
	if path == managerPath {
		names = append(names, objectManagerName)
	}
	return append(names, o.kind)
}

// answer sends the answer to a call, if one is expected.
func (s *session) answer(c *call, values []any, err error) {
	if c.silent {
		return
	}
	message := c.reply(values)
	if err != nil {
		message = c.failure(err)
	}
	s.conn.Send(message, nil)
}
