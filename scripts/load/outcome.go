package load

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// Outcome is how a request went.
type Outcome string

// The outcomes. All but OK and Reuse are requests that were lost.
const (
	OK Outcome = "ok"
	// Reuse: a keep-alive connection was closed under the client before any byte of an answer, or
	// an HTTP/2 server said that it has not looked at the request (GOAWAY, REFUSED_STREAM).
	// Ordinary clients try again.
	Reuse     Outcome = "reuse-eof"
	HardReset Outcome = "hard-reset"   // the connection or stream ended during a live exchange
	Timeout   Outcome = "timeout"      // no complete answer in time
	Refused   Outcome = "dial-refused" // nobody listens
	Status    Outcome = "status"       // an answer of status 400 or above
	Malformed Outcome = "malformed"    // an answer that is none
	Cut       Outcome = "cut"          // tcp: a long-lived connection was ended by the other side
)

// network of an address: the path of a Unix socket begins with a slash, or an @ for an abstract
// one.
func network(address string) string {
	if strings.HasPrefix(address, "/") || strings.HasPrefix(address, "@") {
		return "unix"
	}
	return "tcp"
}

// dial connects, and sets the deadline on the connection.
func dial(address string, deadline time.Time) (net.Conn, Outcome) {
	dialer := net.Dialer{Deadline: deadline}
	conn, err := dialer.DialContext(context.Background(), network(address), address)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
			return nil, Refused
		}
		return nil, failed(err, HardReset)
	}
	if err := conn.SetDeadline(deadline); err != nil {
		_ = conn.Close()
		return nil, HardReset
	}
	return conn, OK
}

// failed is the outcome of an error: Timeout, or otherwise.
func failed(err error, otherwise Outcome) Outcome {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return Timeout
	}
	var network net.Error
	if errors.As(err, &network) && network.Timeout() {
		return Timeout
	}
	return otherwise
}
