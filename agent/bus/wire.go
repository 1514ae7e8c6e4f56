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

// Limits of the connection to the bus.
const (
	// largestMessage is the maximum size of a message. Longer ones are skipped and get no reply.
	// Calls of the interfaces contain a path at most (4 KB), replies of polkit and the bus a few
	// lines; the bus itself allows 32 MB.
	largestMessage = 16 << 10
	// writeTime limits one write. If the bus does not read for that long, the connection is closed.
	writeTime = 10 * time.Second
	// lastTime replaces writeTime while the agent shuts down.
	lastTime = time.Second
)

// wire is the connection that godbus uses. It splits the input into messages. Method calls go to
// take; only replies and the bus's own signals go to godbus.
//
// Messages that cannot be decoded are dropped, because godbus would close the connection or panic.
// File descriptors are not negotiated: those that clients attach to calls would never be closed.
type wire struct {
	net.Conn
	reader *bufio.Reader
	framed bool   // authentication is complete
	rest   []byte // unread rest of a frame
	take   func(*dbus.Message)
	ending atomic.Bool
}

func newWire(connection net.Conn, take func(*dbus.Message)) *wire {
	return &wire{Conn: connection,
		reader: bufio.NewReaderSize(connection, largestMessage), take: take}
}

// end shortens the deadline of current and future writes to lastTime.
func (w *wire) end() {
	w.ending.Store(true)
	_ = w.SetWriteDeadline(time.Now().Add(lastTime))
}

// Write writes data within writeTime. On failure it closes the connection.
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
		_ = w.Conn.Close() // a partially sent message cannot be resumed
		return n, err
	}
	if !w.framed && bytes.HasPrefix(data, []byte("BEGIN")) {
		w.framed = true // needs no lock: the goroutine that authenticates also reads
	}
	return n, nil
}

// Read returns the lines of the authentication, then the messages for godbus.
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

// fixedHeader is the length of the fixed part of a message header: byte order, type, flags,
// version, body length, serial, length of the header fields.
const fixedHeader = 16

// readFrame reads one message. It returns nil for one that was skipped because it is too long.
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
		return nil, fmt.Errorf("D-Bus message with the invalid byte order %q", head[0])
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

// errUndecodable reports a message that made the decoder panic.
var errUndecodable = errors.New("the D-Bus message cannot be decoded")

// decode decodes one message and converts panics to errors.
func decode(frame []byte) (message *dbus.Message, err error) {
	defer func() {
		// godbus's decoder uses reflection, which panics on unexpected input
		if cause := recover(); cause != nil {
			message, err = nil, fmt.Errorf("%w: %v", errUndecodable, cause)
		}
	}()
	return dbus.DecodeMessage(bytes.NewReader(frame))
}
