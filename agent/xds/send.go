package xds

import "time"

// inlineBytes is the number of unread bytes up to which sending a response does not block. gRPC
// accepts a response of any size if less than 64 KB of the stream's earlier responses are waiting
// to be written.
const inlineBytes = 32 << 10

// push sends the responses that are due, and sets the alarm. It does not block if the client does
// not read.
func (st *stream) push() error { return st.pushAfter(false) }

// pushAfter implements push. sent reports whether the caller has just finished sending a response
// that take returned.
func (st *stream) pushAfter(sent bool) error {
	for ; ; sent = true {
		due, mayBlock, err := st.take(sent)
		if due == nil || err != nil {
			return err
		}
		if mayBlock {
			go st.work(func() error {
				if err := st.carrier.SendMsg(due); err != nil {
					return err
				}
				return st.pushAfter(true)
			})
			return nil
		}
		if err := st.carrier.SendMsg(due); err != nil {
			return err
		}
	}
}

// take returns the response to send now; nil if no response is due, or if another one is being
// sent. mayBlock reports whether sending the response may block.
func (st *stream) take(sent bool) (due *frame, mayBlock bool, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return nil, false, nil
	}
	if sent {
		st.sending, st.stuck = false, time.Time{}
	}
	now := time.Now()
	st.expire(now)
	if !st.sending {
		if err := st.checkUnanswered(); err != nil {
			return nil, false, err
		}
		if r := st.respond(now); r != nil {
			due = r.frame(st.Delta, st.server.options.ControlPlane)
			mayBlock = st.unread > inlineBytes
			st.sending, st.lastNonce = true, r.nonce
			st.unread += due.buffers.Len()
		}
	}
	if mayBlock {
		st.stuck = now.Add(st.server.options.SendTimeout)
	}
	st.setAlarm(earlier(st.stuck, st.session.wake(now)))
	return due, mayBlock, nil
}

// respond returns the response that is due; nil if there is none. If
// Options.MaxConcurrentResponseBuilds is set, it first waits until fewer streams than that are
// building a response.
func (st *stream) respond(now time.Time) *response {
	if turns := st.server.turns; turns != nil {
		turns <- struct{}{}
		defer func() { <-turns }()
	}
	r := st.session.next(now)
	if r != nil {
		st.pushed(r)
	}
	return r
}

// expire stops waiting for overdue answers.
func (st *stream) expire(now time.Time) {
	for _, r := range st.session.expire(now) {
		st.server.counters.unanswered.Add(1)
		st.server.logger.Debug("xDS client sent no ACK or NACK in time",
			"stream", st.ID, "node", st.Node.GetId(),
			"type", r.typeURL, "nonce", r.nonce, "waited", now.Sub(r.sent))
	}
}

// setAlarm wakes the handler's goroutine at the time at; zero: it need not be woken. An alarm that
// is set for an earlier time remains. The caller must hold mu.
func (st *stream) setAlarm(at time.Time) {
	switch {
	case at.IsZero():
		if !st.alarmAt.IsZero() {
			st.alarm.Stop()
		}
	case !st.alarmAt.IsZero() && !at.Before(st.alarmAt):
		return
	default:
		st.alarm.Reset(time.Until(at))
	}
	st.alarmAt = at
}

// alarmed records that the alarm has fired. If the client has not read for too long, it returns the
// error that ends the stream.
func (st *stream) alarmed() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.alarmAt = time.Time{}
	if !st.stuck.IsZero() && !time.Now().Before(st.stuck) {
		return st.stuckError()
	}
	return nil
}
