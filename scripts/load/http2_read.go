package load

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/net/http2"
)

// read handles the server's frames until the connection ends.
func (c *http2Conn) read() {
	for {
		frame, err := c.framer.ReadFrame()
		if err == nil {
			err = c.handle(frame)
		}
		var broken http2.StreamError
		if errors.As(err, &broken) {
			c.finish(broken.StreamID, OutcomeMalformed)
			continue
		}
		if err != nil {
			c.end()
			return
		}
	}
}

// end ends all streams with OutcomeHardReset and closes the connection.
func (c *http2Conn) end() {
	c.mu.Lock()
	c.leaving = true
	var left []uint32
	for id := range c.streams {
		left = append(left, id)
	}
	c.mu.Unlock()
	for _, id := range left {
		c.finish(id, OutcomeHardReset)
	}
	_ = c.conn.Close()
}

// handle handles one frame.
func (c *http2Conn) handle(frame http2.Frame) error {
	id := frame.Header().StreamID
	switch frame := frame.(type) {
	case *http2.MetaHeadersFrame:
		if status := frame.PseudoValue("status"); status != "" {
			code, err := strconv.Atoi(status)
			if err != nil {
				return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
			}
			c.status(id, code)
		}
		if frame.StreamEnded() {
			c.answered(id)
		}
	case *http2.DataFrame:
		if err := c.updateWindow(id, frame); err != nil {
			return err
		}
		if frame.StreamEnded() {
			c.answered(id)
		}
	case *http2.RSTStreamFrame:
		if frame.ErrCode == http2.ErrCodeRefusedStream {
			c.finish(id, OutcomeRetriable)
		} else {
			c.finish(id, OutcomeHardReset)
		}
	case *http2.GoAwayFrame:
		c.goAway(frame.LastStreamID)
	case *http2.SettingsFrame:
		if !frame.IsAck() {
			return c.answer(c.framer.WriteSettingsAck)
		}
	case *http2.PingFrame:
		if !frame.IsAck() {
			return c.answer(func() error { return c.framer.WritePing(true, frame.Data) })
		}
	}
	return nil
}

// answer writes a frame that the protocol requires as a reply.
func (c *http2Conn) answer(frame func() error) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.write(time.Now().Add(defaultTimeout), frame)
}

// updateWindow returns to the server the flow-control window that a data frame has used.
func (c *http2Conn) updateWindow(id uint32, frame *http2.DataFrame) error {
	length := frame.Length
	if length == 0 {
		return nil
	}
	return c.answer(func() error {
		err := c.framer.WriteWindowUpdate(0, length)
		if !frame.StreamEnded() {
			err = errors.Join(err, c.framer.WriteWindowUpdate(id, length))
		}
		return err
	})
}

func (c *http2Conn) status(id uint32, code int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if stream := c.streams[id]; stream != nil {
		stream.status = code
	}
}

// answered ends a stream whose answer is complete.
func (c *http2Conn) answered(id uint32) {
	c.mu.Lock()
	stream := c.streams[id]
	c.mu.Unlock()
	switch {
	case stream == nil:
	case stream.status == 0:
		c.finish(id, OutcomeMalformed)
	case stream.status >= http.StatusBadRequest:
		c.finish(id, OutcomeStatus)
	default:
		c.finish(id, OutcomeOK)
	}
}

// goAway handles GOAWAY: the server accepts no new streams, and has not processed those above last.
func (c *http2Conn) goAway(last uint32) {
	c.mu.Lock()
	c.leaving = true
	var untouched []uint32
	for id := range c.streams {
		if id > last {
			untouched = append(untouched, id)
		}
	}
	c.mu.Unlock()
	for _, id := range untouched {
		c.finish(id, OutcomeRetriable)
	}
	c.finish(0, OutcomeOK)
}
