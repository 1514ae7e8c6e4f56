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

// All outcomes except OutcomeOK and OutcomeRetriable are lost requests.
const (
	OutcomeOK Outcome = "ok"
	// OutcomeRetriable means that a keep-alive connection was closed before the first byte of an
	// answer, or that an HTTP/2 server reported that it did not process the request (GOAWAY,
	// REFUSED_STREAM). Ordinary clients retry.
	OutcomeRetriable   Outcome = "reuse-eof"
	OutcomeHardReset   Outcome = "hard-reset"   // the connection or stream ended during an exchange
	OutcomeTimeout     Outcome = "timeout"      // no complete answer in time
	OutcomeDialRefused Outcome = "dial-refused" // nothing listens
	OutcomeStatus      Outcome = "status"       // status 400 or above
	OutcomeMalformed   Outcome = "malformed"    // an invalid answer
	OutcomeCut         Outcome = "cut"          // tcp: the peer closed a long-lived connection
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
			return nil, OutcomeDialRefused
		}
		return nil, failed(err, OutcomeHardReset)
	}
	if err := conn.SetDeadline(deadline); err != nil {
		_ = conn.Close()
		return nil, OutcomeHardReset
	}
	return conn, OutcomeOK
}

// failed returns the outcome of an error: OutcomeTimeout for a time-out, otherwise the given one.
func failed(err error, otherwise Outcome) Outcome {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return OutcomeTimeout
	}
	var network net.Error
	if errors.As(err, &network) && network.Timeout() {
		return OutcomeTimeout
	}
	return otherwise
}
