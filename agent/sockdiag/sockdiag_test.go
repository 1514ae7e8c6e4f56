package sockdiag

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAnswer(t *testing.T) {
	message := func(kind uint16, body ...byte) []byte {
		header := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
		header = binary.NativeEndian.AppendUint16(header, kind)
		return append(append(header, make([]byte, unix.SizeofNlMsghdr-len(header))...), body...)
	}
	one := make([]byte, messageLength)
	one[0], one[messageSockid+1], one[messageUID] = unix.AF_INET, 80, 7
	copy(one[messageSockid+sockidSource:], []byte{127, 0, 0, 1})
	notFound := binary.NativeEndian.AppendUint32(nil, uint32(0xffffffff-unix.ENOENT+1))
	for name, test := range map[string]struct {
		datagram []byte
		sockets  int
		done     bool
		err      string
	}{
		"one": {datagram: message(unix.SOCK_DIAG_BY_FAMILY, one...), sockets: 1},
		"last": {datagram: append(message(unix.SOCK_DIAG_BY_FAMILY, one...),
			message(unix.NLMSG_DONE, 0, 0, 0, 0)...), sockets: 1, done: true},
		"not there": {datagram: message(unix.NLMSG_DONE, notFound...), done: true,
			err: "no such file or directory"},
		"too short": {datagram: message(unix.SOCK_DIAG_BY_FAMILY, one[:20]...)},
		"error": {datagram: message(unix.NLMSG_ERROR, notFound...), done: true,
			err: "no such file or directory"},
		"no number": {datagram: message(unix.NLMSG_ERROR), done: true, err: "without a number"},
		"cut": {datagram: message(unix.SOCK_DIAG_BY_FAMILY, one...)[:30],
			err: "invalid argument"},
	} {
		sockets, done, err := answer(test.datagram)
		if len(sockets) != test.sockets || done != test.done || (err == nil) != (test.err == "") ||
			err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %v, %v, %v", name, sockets, done, err)
		}
		for _, s := range sockets {
			if s.Address != netip.MustParseAddrPort("127.0.0.1:80") || s.UID != 7 {
				t.Errorf("%s: %v", name, s)
			}
		}
	}
}
