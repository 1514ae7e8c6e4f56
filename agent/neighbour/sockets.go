package neighbour

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/sockdiag"
)

// Socket is a TCP socket that listens.
type Socket struct {
	Address netip.AddrPort // [::] takes IPv4 as well, as far as can be seen
	UID     int            // of its owner
	Inode   uint32
	CGroup  uint64 // see sockdiag.Socket
}

func (s Socket) claim() config.Claim {
	return config.Claim{Host: s.Address.Addr().String(), Port: int(s.Address.Port())}
}

// Sockets are the listening TCP sockets of this network namespace, as the kernel tells them; where it cannot be asked (a kernel without
// inet_diag, a sandbox without netlink), its tables are read.
func Sockets() ([]Socket, error) {
	all, err := netlink()
	if err != nil {
		return tables()
	}
	return all, nil
}

// netlink asks the kernel.
func netlink() ([]Socket, error) {
	listening, err := sockdiag.Listening()
	if err != nil {
		return nil, err
	}
	all := make([]Socket, len(listening))
	for i, s := range listening {
		all[i] = Socket{Address: netip.AddrPortFrom(s.Address.Addr().Unmap(), s.Address.Port()), UID: int(s.UID), Inode: s.Inode, CGroup: s.CGroup}
	}
	return all, nil
}

// tables reads the kernel's tables.
func tables() ([]Socket, error) {
	var all []Socket
	for _, path := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		table, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("look who listens: %w", err)
		}
		sockets, err := listening(table)
		_ = table.Close()
		if err != nil {
			return nil, fmt.Errorf("look who listens: %s: %w", path, err)
		}
		all = append(all, sockets...)
	}
	return all, nil
}

// The columns of the tables (proc_net_tcp in the kernel's documentation): "sl local remote st tx:rx tr:when retrnsmt uid timeout inode …".
const (
	localColumn = 1
	stateColumn = 3
	uidColumn   = 7
	inodeColumn = 9

	stateListen = "0A" // TCP_LISTEN
)

// listening reads a table. Lines that are none are passed over.
func listening(table io.Reader) ([]Socket, error) {
	var sockets []Socket
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) <= uidColumn || fields[stateColumn] != stateListen {
			continue
		}
		address, ok := parseAddress(fields[localColumn])
		uid, err := strconv.ParseUint(fields[uidColumn], 10, 31)
		inode := uint64(0) // not known
		if len(fields) > inodeColumn {
			inode, _ = strconv.ParseUint(fields[inodeColumn], 10, 32)
		}
		if ok && err == nil {
			sockets = append(sockets, Socket{Address: address, UID: int(uid), Inode: uint32(inode)})
		}
	}
	return sockets, lines.Err()
}

// parseAddress reads "0100007F:3A98": words of four bytes in the byte order of the host, and the port.
func parseAddress(text string) (netip.AddrPort, bool) {
	words, portText, ok := strings.Cut(text, ":")
	port, err := strconv.ParseUint(portText, 16, 16)
	bytes, decodeErr := hex.DecodeString(words)
	if !ok || err != nil || decodeErr != nil || len(bytes)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(bytes); i += 4 {
		binary.BigEndian.PutUint32(bytes[i:], binary.NativeEndian.Uint32(bytes[i:]))
	}
	address, ok := netip.AddrFromSlice(bytes)
	return netip.AddrPortFrom(address.Unmap(), uint16(port)), ok
}
