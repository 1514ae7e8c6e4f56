package rpc

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// MaxMessageBytes is the maximum length of a message's JSON, in bytes.
const MaxMessageBytes = 1 << 20

const headerLength = 4

// ErrUnframed reports that the peer sends JSON without frames, as earlier versions of
// outrider-capture, outrider-resolved and their agents do.
var ErrUnframed = errors.New("the peer speaks an earlier version of the protocol")

// encode returns a message as a frame.
func encode(message any) ([]byte, error) {
	body, err := json.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("cannot encode a message: %w", err)
	}
	if len(body) > MaxMessageBytes {
		return nil, fmt.Errorf("a message of %d bytes is longer than the %d allowed", len(body),
			MaxMessageBytes)
	}
	frame := make([]byte, headerLength, headerLength+len(body))
	binary.BigEndian.PutUint32(frame, uint32(len(body)))
	return append(frame, body...), nil
}

// decode reads one message. The memory that it allocates is bounded by the bytes that arrive, not
// by the length in the header.
func decode(r io.Reader, message any) error {
	var header [headerLength]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return err
	}
	length := binary.BigEndian.Uint32(header[:])
	if bytes.HasPrefix(header[:], []byte(`{"`)) {
		return ErrUnframed
	}
	if length == 0 || length > MaxMessageBytes {
		return fmt.Errorf("a message of %d bytes: 1 to %d are allowed", length, MaxMessageBytes)
	}
	body, err := io.ReadAll(io.LimitReader(r, int64(length)))
	if err != nil {
		return err
	}
	if len(body) < int(length) {
		return io.ErrUnexpectedEOF
	}
	if err := json.Unmarshal(body, message); err != nil {
		return fmt.Errorf("cannot decode a message: %w", err)
	}
	return nil
}
