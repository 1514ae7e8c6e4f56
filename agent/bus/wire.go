package bus

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/godbus/dbus/v5"
)

// Limits of the wire.
const (
	// largestMessage is what is read of one message; longer ones are skipped unread, and their callers wait in vain. The calls
	// of the interfaces need a path at most (4 KB), answers of polkit and of the bus a few lines; the bus itself would let
	// 32 MB pass, which decode to a multiple.
	largestMessage = 16 << 10
	// writeTime bounds one write: a bus that does not read for so long is left.
	writeTime = 10 * time.Second
	// lastTime is the same once the agent ends.
	lastTime = time.Second
)

// wire is the connection to the bus as godbus gets it. It frames what comes, gives method calls to take, and hands on only
// answers and the bus's own signals. What cannot be decoded is skipped: the bus checks what clients send, but what godbus
// thinks of it would end the connection, or the agent.
//
// It passes no file descriptors, so that godbus does not ask the bus for them: those that a client attached to a call would
// stay open for ever.
type wire struct {
	net.Conn
	reader *bufio.Reader
	framed bool   // authentication is over
	rest   []byte // of a frame that is being handed on
	take   func(*dbus.Message)
	ending atomic.Bool
}

func newWire(connection net.Conn, take func(*dbus.Message)) *wire {
	return &wire{Conn: connection, reader: bufio.NewReaderSize(connection, largestMessage), take: take}
}

// end has what is being written, and what is written from now on, be over soon.
func (w *wire) end() {
	w.ending.Store(true)
	_ = w.SetWriteDeadline(time.Now().Add(lastTime))
}

// Write writes within writeTime, or ends the connection.
func (w *wire) Write(data []byte) (int, error) {
	limit := writeTime
	if w.ending.Load() {
		limit = lastTime
	}
	if err := w.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return 0, err
	}
	n, err := w.Conn.Write(data)
	if err != nil {
		_ = w.Conn.Close() // a message that was sent in part cannot be taken up again
		return n, err
	}
	if !w.framed && bytes.HasPrefix(data, []byte("BEGIN")) {
		w.framed = true // nobody reads before this has returned: the same goroutine authenticates
	}
	return n, nil
}

// Read gives the lines of the authentication, then what is left of the messages.
func (w *wire) Read(data []byte) (int, error) {
	if !w.framed {
		return w.reader.Read(data)
	}
	for len(w.rest) == 0 {
		frame, err := readFrame(w.reader)
		if err != nil {
			return 0, err
		}
		if frame == nil {
			continue
		}
		message, err := decode(frame)
		if err != nil {
			continue
		}
		switch message.Type {
		case dbus.TypeMethodCall:
			w.take(message)
		case dbus.TypeMethodReply, dbus.TypeError:
			w.rest = frame
		case dbus.TypeSignal:
			if sender, _ := message.Headers[dbus.FieldSender].Value().(string); sender == busName {
				w.rest = frame
			}
		}
	}
	n := copy(data, w.rest)
	w.rest = w.rest[n:]
	return n, nil
}

// fixedHeader is the part of a message's header that has a fixed length: byte order, type, flags, version, length of the body,
// serial, length of the header's fields.
const fixedHeader = 16

// readFrame reads one message; nil is one that was skipped because it is too long.
func readFrame(reader *bufio.Reader) ([]byte, error) {
	head, err := reader.Peek(fixedHeader)
	if err != nil {
		return nil, err
	}
	var order binary.ByteOrder = binary.LittleEndian
	switch head[0] {
	case 'l':
	case 'B':
		order = binary.BigEndian
	default:
		return nil, fmt.Errorf("the bus sent a message in no byte order: %q", head[0])
	}
	fields := (uint64(order.Uint32(head[12:])) + 7) &^ 7 // padded to 8 bytes
	length := fixedHeader + fields + uint64(order.Uint32(head[4:]))
	if length > largestMessage {
		_, err := io.CopyN(io.Discard, reader, int64(length))
		return nil, err
	}
	frame := make([]byte, length)
	if _, err := io.ReadFull(reader, frame); err != nil {
		return nil, err
	}
	return frame, nil
}

// errUndecodable is a message that made the decoder panic.
var errUndecodable = errors.New("the message cannot be decoded")

// decode decodes one message, whatever it holds.
func decode(frame []byte) (message *dbus.Message, err error) {
	defer func() {
		if cause := recover(); cause != nil { // godbus's decoder relies on reflection, which panics at what it did not foresee
			message, err = nil, fmt.Errorf("%w: %v", errUndecodable, cause)
		}
	}()
	return dbus.DecodeMessage(bytes.NewReader(frame))
}
