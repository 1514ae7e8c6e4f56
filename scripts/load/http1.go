package load

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"
)

// http1 sends GET requests on a persistent connection, or on a new connection each.
type http1 struct {
	address   string
	keepAlive bool
	request   []byte

	conn   net.Conn // nil: not connected
	reader *bufio.Reader
	used   bool // conn has carried an answer
}

func newHTTP1(address, host, path string, keepAlive bool) *http1 {
	connection := "keep-alive"
	if !keepAlive {
		connection = "close"
	}
	request := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nConnection: %s\r\n\r\n", path, host,
		connection)
	return &http1{address: address, keepAlive: keepAlive, request: []byte(request)}
}

func (h *http1) exchange(deadline time.Time) Outcome {
	if h.conn == nil {
		conn, outcome := dial(h.address, deadline)
		if outcome != OutcomeOK {
			return outcome
		}
		h.conn, h.reader, h.used = conn, bufio.NewReader(conn), false
	} else if err := h.conn.SetDeadline(deadline); err != nil {
		h.close()
		return OutcomeHardReset
	}
	outcome, again := h.roundTrip()
	if outcome != OutcomeOK && outcome != OutcomeStatus || !again || !h.keepAlive {
		h.close()
	}
	h.used = true
	return outcome
}

// roundTrip sends the request and reads the answer. It also reports whether the connection can be
// used again.
func (h *http1) roundTrip() (outcome Outcome, again bool) {
	// A failure before the first byte of an answer is OutcomeRetriable on a reused connection, and
	// OutcomeHardReset on a new one.
	early := OutcomeHardReset
	if h.used {
		early = OutcomeRetriable
	}
	_, writeErr := h.conn.Write(h.request)
	if writeErr != nil && !errors.Is(writeErr, syscall.EPIPE) &&
		!errors.Is(writeErr, syscall.ECONNRESET) {
		return failed(writeErr, OutcomeHardReset), false
	}
	// Read even if writing failed: the server may have sent an answer before it closed the
	// connection.
	if _, err := h.reader.Peek(1); err != nil {
		return failed(err, early), false
	}
	response, err := http.ReadResponse(h.reader, nil)
	if err != nil {
		if ended(err) {
			return failed(err, OutcomeHardReset), false
		}
		return failed(err, OutcomeMalformed), false
	}
	_, err = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close() // no error matters: the body was read completely
	if err != nil {
		return failed(err, OutcomeHardReset), false
	}
	if response.StatusCode >= http.StatusBadRequest {
		return OutcomeStatus, !response.Close
	}
	return OutcomeOK, !response.Close
}

// ended reports whether err means that the connection ended.
func ended(err error) bool {
	var operation *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.As(err, &operation)
}

func (h *http1) close() {
	if h.conn != nil {
		_ = h.conn.Close() // no error matters: no answer is outstanding
		h.conn = nil
	}
}
