package load

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"time"
)

// echoStream sends messages on one long-lived connection, and expects each to be sent back.
type echoStream struct {
	address string
	stream  int

	conn net.Conn // nil: to be dialled
	sent int
}

func (e *echoStream) exchange(deadline time.Time) Outcome {
	if e.conn == nil {
		conn, outcome := dial(e.address, deadline)
		if outcome != OutcomeOK {
			return outcome
		}
		e.conn = conn
	} else if err := e.conn.SetDeadline(deadline); err != nil {
		e.close()
		return OutcomeCut
	}
	e.sent++
	message := fmt.Appendf(nil, "stream %3d message %10d\n", e.stream, e.sent)
	if _, err := e.conn.Write(message); err != nil {
		e.close()
		return failed(err, OutcomeCut)
	}
	echo := make([]byte, len(message))
	if _, err := io.ReadFull(e.conn, echo); err != nil {
		e.close()
		return failed(err, OutcomeCut)
	}
	if !bytes.Equal(message, echo) {
		e.close()
		return OutcomeMalformed
	}
	return OutcomeOK
}

func (e *echoStream) close() {
	if e.conn != nil {
		_ = e.conn.Close() // no error matters: no message is outstanding
		e.conn = nil
	}
}
