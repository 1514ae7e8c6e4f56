package keeper

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// traffic is what a process has open.
type traffic struct {
	established uint64 // TCP connections
	downstream  uint64 // connections that clients have made, TCP or of a Unix socket; what is doubtful counts as one
	listening   bool   // it has a socket of a TCP or UDP listener
}

// States of sockets as the kernel's tables have them (include/net/tcp_states.h, include/uapi/linux/net.h).
const (
	tcpEstablished = "01"
	tcpFinWait1    = "04" // this side has sent all; there may be more to receive
	tcpFinWait2    = "05"
	tcpUnconnected = "07" // of UDP
	tcpListen      = "0A"
	tcpCloseWait   = "08" // the other side has sent all; it may wait for an answer
	unixConnected  = "03"
)

// traffic tells what each process has open, reading the kernel's tables once for all. Sockets in a folder, where Envoys are administered,
// are nobody's business.
//
// An Envoy that drains has closed its listeners, and its admin. What tells its clients from its upstreams, whose connections it keeps for an
// hour, is SO_REUSEADDR: Envoy sets it for its listeners, a socket that is accepted has it from its listener, and one that connects has not.
// For UDP it is SO_REUSEPORT, which only those have that listen. With an error, what is found may be too little.
func (u usage) traffic(pids []int, folder string) (map[int]traffic, error) {
	all, err := u.open(pids)
	defer all.close()
	found := map[int]traffic{}
	if len(all.owner) == 0 {
		return found, err
	}
	outgoing := u.outgoingPorts()
	seen := map[string]bool{}         // the kernel tells the last of a table that grows meanwhile more than once (tcp_seq_start)
	datagrams := map[int]bool{}       // who serves UDP: what it has in flight is not seen
	listening := func(inode []byte) { // a hot restart shares the sockets until the parent closes its own
		for _, pid := range all.sharers[string(inode)] {
			one := found[pid]
			one.listening = true
			found[pid] = one
		}
	}
	err = errors.Join(err, u.sockets("tcp", func(s socket) {
		owner, ours := all.owner[string(s.inode)]
		if !ours || seen[string(s.inode)] {
			return
		}
		seen[string(s.inode)] = true
		if string(s.state) == tcpListen {
			listening(s.inode)
			return
		}
		one := found[owner.pid]
		switch string(s.state) {
		case tcpEstablished:
			one.established++
		case tcpFinWait1, tcpFinWait2, tcpCloseWait:
		default:
			return
		}
		if !outgoing(s.port()) || all.has(string(s.inode), unix.SO_REUSEADDR) {
			one.downstream++
		}
		found[owner.pid] = one
	}), u.sockets("udp", func(s socket) {
		sharers := all.sharers[string(s.inode)] // a hot restart hands the sockets over
		if len(sharers) > 0 && string(s.state) == tcpUnconnected && (!outgoing(s.port()) || all.has(string(s.inode), unix.SO_REUSEPORT)) {
			listening(s.inode)
			for _, pid := range sharers {
				datagrams[pid] = true
			}
		}
	}), u.unixSockets(func(inode, state, path []byte) {
		// The side that accepts has its listener's path, the one that connects has none.
		if owner, ours := all.owner[string(inode)]; ours && string(state) == unixConnected && len(path) > 0 && filepath.Dir(string(path)) != folder {
			one := found[owner.pid]
			one.downstream++
			found[owner.pid] = one
		}
	}))
	for pid := range datagrams {
		one := found[pid]
		one.downstream = max(one.downstream, one.established)
		found[pid] = one
	}
	if err != nil {
		return found, fmt.Errorf("count connections: %w", err)
	}
	return found, nil
}

// open gets at the sockets of those of some processes that live.
func (u usage) open(pids []int) (*processes, error) {
	all := &processes{owner: map[string]owner{}, sharers: map[string][]int{}}
	var failures []error
	for _, pid := range pids {
		handle, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			handle = -1
		}
		if err := all.add(u, pid, handle); err != nil && !errors.Is(err, fs.ErrNotExist) { // else it has exited
			failures = append(failures, err)
		}
	}
	return all, errors.Join(failures...)
}

// has tells whether a socket has an option set. One that cannot be asked is taken for such.
func (p *processes) has(inode string, option int) bool {
	value := 1
	_ = p.with(inode, func(socket int) error {
		var status unix.Stat_t
		if err := unix.Fstat(socket, &status); err != nil || strconv.FormatUint(status.Ino, 10) != inode {
			return err // it is another one by now
		}
		if its, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, option); err == nil {
			value = its
		}
		return nil
	})
	return value != 0
}

// outgoingPorts tells the ports that the kernel gives to outgoing connections; where it does not say which, all may be.
func (u usage) outgoingPorts() func(uint16) bool {
	from, to := uint16(0), uint16(0xffff)
	if content, err := os.ReadFile(filepath.Join(u.proc, "sys", "net", "ipv4", "ip_local_port_range")); err == nil { // that of IPv6 too
		_, _ = fmt.Sscan(string(content), &from, &to)
	}
	return func(port uint16) bool { return from <= port && port <= to }
}

// socket is a line of the kernel's tables of sockets; it is valid until the next one is read.
type socket struct {
	local []byte // address:port, in hex
	state []byte // TCP_* of the kernel, two digits in hex
	inode []byte // "0": it has none
}

// port is the local one.
func (s socket) port() uint16 {
	port, _ := strconv.ParseUint(string(s.local[bytes.LastIndexByte(s.local, ':')+1:]), 16, 16)
	return uint16(port)
}

// sockets calls f with each line of the kernel's tables of a protocol, both families: "sl local remote st tx:rx tr:when retrnsmt uid
// timeout inode …".
func (u usage) sockets(protocol string, f func(socket)) error {
	const localColumn, stateColumn, inodeColumn = 1, 3, 9
	read := func(fields [][]byte) {
		if len(fields) > inodeColumn {
			f(socket{local: fields[localColumn], state: fields[stateColumn], inode: fields[inodeColumn]})
		}
	}
	err := u.table(protocol+"6", read)
	if errors.Is(err, os.ErrNotExist) {
		err = nil // a kernel without IPv6
	}
	return errors.Join(u.table(protocol, read), err)
}

// unixSockets calls f with each line of the kernel's table of Unix sockets: "num refcount protocol flags type st inode [path]".
func (u usage) unixSockets(f func(inode, state, path []byte)) error {
	const stateColumn, inodeColumn, pathColumn = 5, 6, 7
	return u.table("unix", func(fields [][]byte) {
		if len(fields) > inodeColumn {
			f(fields[inodeColumn], fields[stateColumn], bytes.Join(fields[pathColumn:], []byte(" ")))
		}
	})
}

func (u usage) table(name string, f func(fields [][]byte)) error {
	file, err := os.Open(filepath.Join(u.proc, "self", "net", name))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	var fields [][]byte // of all lines in turn: a table may have tens of thousands
	for lines.Scan() {
		fields = slices.AppendSeq(fields[:0], bytes.FieldsSeq(lines.Bytes()))
		f(fields)
	}
	return lines.Err()
}
