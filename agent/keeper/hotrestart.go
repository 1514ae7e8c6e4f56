package keeper

import (
	"encoding/binary"
	"errors"
)

// Envoy's hot-restart RPC: a datagram holds the length (8 bytes, big endian) of an envoy.HotRestartMessage
// (source/server/hot_restart.proto) and the message. Only what a stand-in for a dead parent needs is read and written
// here, by hand: the keeper links no protobuf.

// parentRequest is what a new epoch asks of the one before: the number of the field in HotRestartMessage.Request.
type parentRequest uint64

const (
	passListenSocket parentRequest = 1 // waits for an answer
	shutdownAdmin    parentRequest = 2 // waits for an answer
	parentStats      parentRequest = 3 // waits for an answer
	drainListeners   parentRequest = 4
	terminateParent  parentRequest = 5
)

// Field numbers of HotRestartMessage.
const (
	fieldRequest = 1
	fieldReply   = 2
)

// Protobuf's wire types.
const (
	wireVarint = 0
	wireBytes  = 2
)

const rpcHeader = 8

var errNotRequest = errors.New("not a hot-restart request")

// parseRequest reads a datagram from a child.
func parseRequest(datagram []byte) (parentRequest, error) {
	if len(datagram) < rpcHeader || binary.BigEndian.Uint64(datagram) != uint64(len(datagram)-rpcHeader) {
		return 0, errNotRequest
	}
	field, body, ok := firstMessage(datagram[rpcHeader:])
	if !ok || field != fieldRequest {
		return 0, errNotRequest
	}
	field, _, ok = firstMessage(body)
	if !ok {
		return 0, errNotRequest
	}
	return parentRequest(field), nil
}

// firstMessage splits off the first field of a message, which must itself be a message.
func firstMessage(data []byte) (field uint64, body []byte, ok bool) {
	tag, n := binary.Uvarint(data)
	if n <= 0 || tag&7 != wireBytes {
		return 0, nil, false
	}
	length, m := binary.Uvarint(data[n:])
	if m <= 0 || length > uint64(len(data)-n-m) {
		return 0, nil, false
	}
	return tag >> 3, data[n+m : n+m+int(length)], true
}

// reply is the datagram that answers a request, or nil where Envoy expects none.
func reply(request parentRequest, parentStarted uint64) []byte {
	var body []byte
	switch request {
	case passListenSocket: // fd = -1: the child binds a socket of its own
		minusOne := int64(-1)
		body = appendVarint(nil, 1, uint64(minusOne))
	case shutdownAdmin: // original_start_time_unix_seconds, enable_reuse_port_default (Envoy's default)
		body = appendVarint(appendVarint(nil, 1, parentStarted), 2, 1)
	case parentStats: // none
	default:
		return nil
	}
	message := appendMessage(nil, fieldReply, appendMessage(nil, uint64(request), body))
	return append(binary.BigEndian.AppendUint64(nil, uint64(len(message))), message...)
}

func appendVarint(to []byte, field, value uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(to, field<<3|wireVarint), value)
}

func appendMessage(to []byte, field uint64, body []byte) []byte {
	to = binary.AppendUvarint(to, field<<3|wireBytes)
	return append(binary.AppendUvarint(to, uint64(len(body))), body...)
}
