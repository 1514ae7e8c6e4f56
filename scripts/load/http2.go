package load

import (
	"bytes"
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// attempts is the maximum number of connections that are tried until one accepts a request.
const attempts = 3

// window is the flow control window of streams and connections.
const window = 1 << 20

// http2Slot holds one HTTP/2 connection that several streams share. After GOAWAY the next request
// uses a new connection.
type http2Slot struct {
	address string
	headers []byte // the header block of each request

	mu   sync.Mutex
	conn *http2Conn
}

func newHTTP2Slot(address, host, path string) *http2Slot {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	encoder.SetMaxDynamicTableSize(0) // makes the block the same every time
	for _, field := range []hpack.HeaderField{
		{Name: ":method", Value: "GET"},
		{Name: ":scheme", Value: "http"},
		{Name: ":authority", Value: host},
		{Name: ":path", Value: path},
	} {
		_ = encoder.WriteField(field) // writing into memory does not fail
	}
	return &http2Slot{address: address, headers: block.Bytes()}
}

func (s *http2Slot) exchange(deadline time.Time) Outcome {
	for range attempts {
		conn, outcome := s.get(deadline)
		if outcome != OutcomeOK {
			return outcome
		}
		if outcome, sent := conn.exchange(s.headers, deadline); sent {
			return outcome
		}
	}
	return OutcomeRetriable
}

// get returns a connection that accepts requests.
func (s *http2Slot) get(deadline time.Time) (*http2Conn, Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil && s.conn.usable() {
		return s.conn, OutcomeOK
	}
	conn, outcome := dial(s.address, deadline)
	if outcome != OutcomeOK {
		return nil, outcome
	}
	made, err := newHTTP2Conn(conn)
	if err != nil {
		_ = conn.Close()
		return nil, failed(err, OutcomeHardReset)
	}
	s.conn = made
	return made, OutcomeOK
}

func (s *http2Slot) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		s.conn.retire()
		s.conn = nil
	}
}

// http2Conn is the client side of an HTTP/2 connection, limited to GET, so that it knows exactly
// which requests the server has not processed.
type http2Conn struct {
	conn net.Conn

	writing sync.Mutex // held for one frame
	framer  *http2.Framer

	mu      sync.Mutex
	next    uint32 // ID of the next stream
	streams map[uint32]*http2Stream
	leaving bool // no new streams are accepted, after GOAWAY or the end of the connection
}

type http2Stream struct {
	status int
	done   chan Outcome // buffers one outcome
}

func newHTTP2Conn(conn net.Conn) (*http2Conn, error) {
	c := &http2Conn{conn: conn, framer: http2.NewFramer(conn, conn), next: 1,
		streams: map[uint32]*http2Stream{}}
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil) // default table size
	_, err := conn.Write([]byte(http2.ClientPreface))
	settings := []http2.Setting{{ID: http2.SettingEnablePush, Val: 0},
		{ID: http2.SettingInitialWindowSize, Val: window}}
	err = errors.Join(err, c.framer.WriteSettings(settings...), c.framer.WriteWindowUpdate(0,
		window), conn.SetDeadline(time.Time{}))
	if err != nil {
		return nil, err
	}
	go c.read()
	return c, nil
}

func (c *http2Conn) usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.leaving
}

// exchange sends a request and waits for its answer. sent is false if the connection accepts no
// more streams.
func (c *http2Conn) exchange(headers []byte, deadline time.Time) (outcome Outcome, sent bool) {
	stream := &http2Stream{done: make(chan Outcome, 1)}
	// New streams must reach the server in the order of their ids.
	c.writing.Lock()
	c.mu.Lock()
	if c.leaving {
		c.mu.Unlock()
		c.writing.Unlock()
		return OutcomeRetriable, false
	}
	id := c.next
	c.next += 2
	c.streams[id] = stream
	c.mu.Unlock()
	err := c.write(deadline, func() error {
		return c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: headers,
			EndStream: true, EndHeaders: true})
	})
	c.writing.Unlock()
	if err != nil {
		c.finish(id, failed(err, OutcomeHardReset))
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case outcome = <-stream.done:
	case <-timer.C:
		c.finish(id, OutcomeTimeout)
		outcome = <-stream.done // either the timeout's or the answer's, whichever was first
		c.writing.Lock()
		_ = c.write(time.Now().Add(time.Second),
			func() error { return c.framer.WriteRSTStream(id, http2.ErrCodeCancel) })
		c.writing.Unlock()
	}
	return outcome, true
}

// write writes a frame. The caller holds c.writing.
func (c *http2Conn) write(deadline time.Time, frame func() error) error {
	if err := c.conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	return frame()
}

// finish ends a stream, unless it has ended already. If the server has sent GOAWAY and this was the
// last stream, it closes the connection.
func (c *http2Conn) finish(id uint32, outcome Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if stream := c.streams[id]; stream != nil {
		delete(c.streams, id)
		stream.done <- outcome
	}
	if c.leaving && len(c.streams) == 0 {
		_ = c.conn.Close() // also ends the goroutine of the method read
	}
}

// retire prevents new streams, and closes the connection after the last stream.
func (c *http2Conn) retire() {
	c.mu.Lock()
	c.leaving = true
	c.mu.Unlock()
	c.finish(0, OutcomeOK)
}
