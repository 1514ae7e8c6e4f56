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

// Outcome is the result of a request.
type Outcome string

// All outcomes except OK and Reuse are lost requests.
const (
	OK Outcome = "ok"
	// Reuse: a keep-alive connection was closed before the first byte of an answer, or an HTTP/2
	// server reported that it did not process the request (GOAWAY, REFUSED_STREAM). Ordinary
	// clients retry.
	Reuse     Outcome = "reuse-eof"
	HardReset Outcome = "hard-reset"   // the connection or stream ended during an exchange
	Timeout   Outcome = "timeout"      // no complete answer in time
	Refused   Outcome = "dial-refused" // nothing listens
	Status    Outcome = "status"       // status 400 or above
	Malformed Outcome = "malformed"    // an invalid answer
	Cut       Outcome = "cut"          // tcp: the peer closed a long-lived connection
)

// network returns the network of an address. The path of a Unix socket begins with a slash, or with
// @ if it is abstract.
func network(address string) string {
	if strings.HasPrefix(address, "/") || strings.HasPrefix(address, "@") {
		return "unix"
	}
	return "tcp"
}

// dial connects and sets the deadline of the connection.
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

// failed returns the outcome of an error: Timeout, or otherwise.
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
