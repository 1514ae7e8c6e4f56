package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/godbus/dbus/v5"
)

// changeTime limits a call of the backend that changes the agent.
const changeTime = 30 * time.Second

// handler implements a method. The arguments have the types of the XML.
type handler func(ctx context.Context, c *call) ([]any, error)

// take queues a received call once its user is known, or refuses it. The reading goroutine calls
// it, so it never blocks.
func (s *session) take(message *dbus.Message) {
	c := newCall(message)
	if !s.signatures[c.signature] {
		c.args = nil // the call's signature matches no method; drop the arguments to bound memory
	}
	switch known, queued := s.callers.identify(c); {
	case known:
		s.admit(c)
	case !queued:
		s.turnAway(c)
	}
}

// admit queues a call whose user is known, or refuses it. It never blocks.
func (s *session) admit(c *call) {
	switch {
	case c.uid == 0 && s.rootCalls.enter(c.sender):
		// root has its own queue, so that other users cannot block root
		s.rootQueue <- c // does not block: capacity is mostRootCalls
	case c.uid != 0 && s.calls.enter(c.uid):
		s.queue <- c // does not block: the queue has room for mostCalls, the limit of calls
	default:
		s.turnAway(c)
	}
}

// turnAway queues a call whose reply is the error Busy. Beyond mostRefusals calls it drops the
// call, which then gets no reply.
func (s *session) turnAway(c *call) {
	if c.silent {
		return
	}
	select {
	case s.refused <- c:
	default: // drop the call
	}
}

// consume handles the elements of a queue until ctx ends.
func consume[T any](ctx context.Context, queue <-chan T, handle func(T)) {
	for {
		select {
		case one := <-queue:
			handle(one)
		case <-ctx.Done():
			return
		}
	}
}

// refuse sends a Busy reply.
func (s *session) refuse(c *call) {
	s.answer(c, nil, busyError("the agent has too many calls to answer; try again later"))
}

// serve replies to a call. Methods with a polkit action run in a goroutine of their own.
func (s *session) serve(ctx context.Context, c *call) {
	run, method, err := s.find(ctx, c)
	if err == nil && method.takes() != c.signature {
		err = &Error{Name: errorInvalidArgs,
			Message: fmt.Sprintf("%s.%s takes arguments of the types %q, not %q", c.kind, c.member,
				method.takes(), c.signature)}
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
	slots := s.changes
	if uid == 0 {
		slots = s.rootChanges // root has its own limit, so that other users cannot block root
	}
	if !slots.enter(uid) {
		s.answer(c, nil,
			busyError("too many requests of this user wait for an answer; try again later"))
		return
	}
	s.running.Go(func() {
		defer slots.leave(uid)
		s.change(ctx, c, uid, action, run)
	})
}

// change authorises and runs a method with a polkit action. Root needs no authorisation.
func (s *session) change(ctx context.Context, c *call, uid uint32, action string, run handler) {
	if uid != 0 {
		if err := s.authority.allow(ctx, c.sender, action, c.interactive); err != nil {
			s.options.Logger.Warn("refused a request over D-Bus", "method", c.member, "uid", uid,
				"sender", c.sender, "why", err)
			s.answer(c, nil, err)
			return
		}
	}
	s.options.Logger.Info("request over D-Bus", "method", c.member, "object", string(c.path), "uid",
		uid, "sender", c.sender)
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	values, err := run(ctx, c)
	s.answer(c, values, err)
}

// find returns the handler and description of the called method.
func (s *session) find(ctx context.Context, c *call) (handler, *methodOfXML, error) {
	now := s.state.get(ctx)
	object, ok := now.objects[c.path]
	if !ok && len(now.children(c.path)) == 0 {
		return nil, nil,
			&Error{Name: errorUnknownObject, Message: fmt.Sprintf("there is no object %s", c.path)}
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
		return nil, nil, &Error{Name: errorUnknownInterface,
			Message: fmt.Sprintf("%s has no interface %s", c.path, c.kind)}
	}
	return nil, nil, &Error{Name: errorUnknownMethod,
		Message: fmt.Sprintf("%s has no method %s", c.path, c.member)}
}

// interfacesOf returns the names of an object's interfaces.
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

// answer sends the reply to a call, if one is expected.
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
