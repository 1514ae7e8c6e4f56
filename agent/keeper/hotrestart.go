package keeper

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"time"
)

// A hot-restart message of Envoy is a datagram: its length (8 bytes, big endian) and an
// envoy.HotRestartMessage (source/server/hot_restart.proto). The keeper does not link protobuf: it
// only reads the kind of a request, which is a field number in HotRestartMessage.Request, and
// writes one reply.
const (
	messageHeader = 8

	fieldRequest = 1
	fieldReply   = 2

	passListenSocket = 1 // expects a reply
	shutdownAdmin    = 2 // expects a reply
	terminateParent  = 5

	wireBytes = 2 // protobuf's wire type of strings and messages
)

// requestOf returns the kind of a request, 0 if the datagram is none.
func requestOf(datagram []byte) uint64 {
	if len(datagram) < messageHeader {
		return 0
	}
	field, request := firstField(datagram[messageHeader:])
	if field != fieldRequest {
		return 0
	}
	kind, _ := firstField(request)
	return kind
}

// firstField returns the number and the content of the first field of a protobuf message. The field
// must itself be a message.
func firstField(message []byte) (number uint64, content []byte) {
	tag, n := binary.Uvarint(message)
	if n <= 0 || tag&7 != wireBytes {
		return 0, nil
	}
	length, m := binary.Uvarint(message[n:])
	if m <= 0 || length > uint64(len(message)-n-m) {
		return 0, nil
	}
	return tag >> 3, message[n+m:][:length]
}

// shutdownAdminReply returns the reply to shutdownAdmin. It contains the start time of the first
// epoch, and the information that SO_REUSEPORT is the default of listeners. It also serves as reply
// to passListenSocket: Envoy interprets a reply of another kind as "the parent has no such socket".
func shutdownAdminReply(started time.Time) []byte {
	body := binary.AppendUvarint([]byte{1 << 3}, uint64(max(0, started.Unix())))
	body = append(body, 2<<3, 1)
	for _, field := range []byte{shutdownAdmin, fieldReply} {
		body = append([]byte{field<<3 | wireBytes, byte(len(body))}, body...)
	}
	return append(binary.BigEndian.AppendUint64(nil, uint64(len(body))), body...)
}

// standIn answers the hot-restart messages of a child whose parent died before the child requested
// its termination. Without an answer the child, which already serves, would abort at that request
// (SIGABRT, "hot restart sendmsg() failed"). Afterwards the child can be the parent of another hot
// restart. See docs/decisions/0003.
type standIn struct {
	parent Process // only RestartEpoch, Lineage and Started are needed
	child  *net.UnixAddr
	socket *net.UnixConn
}

func newStandIn(info Info, parent Process, socket *net.UnixConn) *standIn {
	child := hotRestartSocket(info.SocketPath, "child", info.BaseIDOf(parent.Lineage),
		parent.RestartEpoch+1)
	return &standIn{parent, &net.UnixAddr{Name: child, Net: "unixgram"}, socket}
}

// bindStandIn replaces the socket of a dead parent at path. It renames a new socket to path, so
// that path exists at all times: a child that finds no socket there aborts at once.
func bindStandIn(path string) (*net.UnixConn, error) {
	temporary := path[:len(path)-1] + "~"
	_ = os.Remove(temporary)
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: temporary, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	if err = os.Chmod(temporary, 0o600); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		_ = socket.Close()
		_ = os.Remove(temporary)
		return nil, fmt.Errorf("replace the hot-restart socket of a dead parent epoch: %w", err)
	}
	return socket, nil
}

// serve answers until the child requests the termination of its parent, or the socket is closed. It
// does not remove the socket's file: Envoy accepts a stale file, and a later epoch may already have
// replaced it by its own.
func (i *standIn) serve() {
	defer func() { _ = i.socket.Close() }()
	reply := shutdownAdminReply(i.parent.Started)
	send := func() { _, _ = i.socket.WriteToUnix(reply, i.child) }
	// The child may be waiting for a reply that the parent had not sent. If not, the child accepts
	// this reply as that to its next request; all replies are equal.
	send()
	buffer := make([]byte, 4096) // Envoy's MaxSendmsgSize
	for {
		n, err := i.socket.Read(buffer)
		if err != nil {
			return
		}
		switch requestOf(buffer[:n]) {
		case passListenSocket, shutdownAdmin:
			send()
		case terminateParent:
			return
		}
	}
}
