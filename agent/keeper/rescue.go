package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// rescue stands in for a parent that ended before its child was done with it. Without it the child aborts itself (SIGABRT,
// "hot restart sendmsg() failed") once it wants to tell the parent to terminate. The stand-in has the dead parent's socket
// name, answers what must be answered and swallows the rest; the child then serves on and can be hot-restarted from.
type rescue struct {
	epoch       int // the dead parent's
	lineage     int
	childPID    int
	childSocket string // where answers go
	started     time.Time
	socket      *os.File
	heard       chan struct{} // a token after each message
	done        chan struct{} // closed when serve has returned
}

// bindRescue takes over the name of a dead parent's socket. The new socket is made under another name and renamed: were
// the name missing for a moment, a child that sends just then would abort at once instead of trying again.
func bindRescue(path string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("rescue: make a socket: %w", err)
	}
	file := os.NewFile(uintptr(fd), path)
	_ = unix.Fchmod(fd, 0o600) // before bind: the name never has another mode
	temporary := path + "~"
	if len(temporary) > maxSocketPath {
		temporary = path[:len(path)-1] + "~"
	}
	_ = os.Remove(temporary)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: temporary}); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("rescue: bind %s: %w", temporary, err)
	}
	if err = os.Chmod(temporary, 0o600); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		_ = file.Close()
		_ = os.Remove(temporary)
		return nil, fmt.Errorf("rescue: take over %s: %w", path, err)
	}
	return file, nil
}

func newRescue(info Info, parent Process, childPID int, socket *os.File) *rescue {
	return &rescue{
		epoch: parent.Epoch, lineage: parent.Lineage, started: parent.Started, childPID: childPID, socket: socket,
		childSocket: hotRestartSocket(info.SocketPath, "child", info.BaseIDOf(parent.Lineage), parent.Epoch+1),
		heard:       make(chan struct{}, 1), done: make(chan struct{}),
	}
}

// serve answers until the child has told its parent to terminate, or stop. It leaves the socket's name where it is: a
// stale name is what Envoy expects to find, and the epoch after next may have its own socket under it by now.
func (r *rescue) serve() {
	defer close(r.done)
	defer func() { _ = r.socket.Close() }()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go r.unblock(ctx)
	buffer := make([]byte, 4096) // Envoy's MaxSendmsgSize
	for {
		n, err := r.socket.Read(buffer)
		if errors.Is(err, io.EOF) {
			continue // an empty datagram
		}
		if err != nil {
			return
		}
		request, err := parseRequest(buffer[:n])
		if err != nil {
			continue
		}
		select {
		case r.heard <- struct{}{}:
		default:
		}
		if answer := reply(request, uint64(max(0, r.started.Unix()))); answer != nil {
			r.send(answer)
		}
		if request == terminateParent {
			return
		}
	}
}

// send never waits: a child that does not read its answers is beyond help.
func (r *rescue) send(datagram []byte) {
	raw, err := r.socket.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.Sendto(int(fd), datagram, unix.MSG_DONTWAIT, &unix.SockaddrUnix{Name: r.childSocket})
	})
}

func (r *rescue) stop() {
	_ = r.socket.Close()
	<-r.done
}

// How the child is looked at.
const (
	unblockInterval = 20 * time.Millisecond
	unblockFor      = 10 * time.Second
)

// unblock helps a child that had sent its question to the parent just before that died: it waits for the answer without
// end. An answer to "shut down your admin" fits both questions that Envoy waits on: to "pass me a listening socket" an
// answer of another kind means that there is none. Done once the child is seen at something else.
func (r *rescue) unblock(ctx context.Context) {
	ticker := time.NewTicker(unblockInterval)
	defer ticker.Stop()
	deadline := time.Now().Add(unblockFor)
	var before string
	idle := 0
	for time.Now().Before(deadline) {
		select {
		case <-ctx.Done():
			return
		case <-r.heard:
			return // it talks to the stand-in, so nothing of before is open
		case <-ticker.C:
		}
		now, number, err := systemCall(r.childPID)
		if err != nil {
			return
		}
		switch {
		case number == unix.SYS_RECVMSG && now == before:
			r.send(reply(shutdownAdmin, uint64(max(0, r.started.Unix()))))
			return
		case number == unix.SYS_EPOLL_PWAIT || isEpollWait(number):
			if idle++; idle == 3 {
				return
			}
		default:
			idle = 0
		}
		before = now
	}
}

// systemCall tells in which call, with which arguments, the main thread of a process waits; -1 when it runs.
func systemCall(pid int) (line string, number int, err error) {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/syscall")
	if err != nil {
		return "", 0, err
	}
	line = string(content)
	word, _, _ := strings.Cut(strings.TrimSpace(line), " ")
	if number, err = strconv.Atoi(word); err != nil {
		return line, -1, nil //nolint:nilerr // the word is "running"
	}
	return line, number, nil
}
