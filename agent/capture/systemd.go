package capture

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// storedNAT is the name of the nat table's socket in systemd's store.
const storedNAT = "nat"

// storeNAT makes systemd keep a duplicate of the socket, so that its table survives the helper; nil
// removes it.
func storeNAT(s *ownerSocket) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	// FDPOLL=0: a socket in an error state is kept.
	message, rights := "FDSTORE=1\nFDPOLL=0\nFDNAME="+storedNAT, []byte(nil)
	if s == nil {
		message = "FDSTOREREMOVE=1\nFDNAME=" + storedNAT
	} else {
		rights = unix.UnixRights(int(s.file.Fd()))
	}
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(socket) }()
	if err := unix.Sendmsg(socket, []byte(message), rights, &unix.SockaddrUnix{Name: path},
		0); err != nil {
		return fmt.Errorf("store a socket in systemd: %w", err)
	}
	return nil
}

// versionTime bounds the start of the installed program. It is less than WatchdogSec= of the unit.
const versionTime = 2 * time.Second

// reexecute replaces the helper by the installed program. The tables stay: their sockets are
// inherited. It returns only on failure, and then nothing has changed.
func reexecute(h *helper, listener *net.UnixListener) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	program = strings.TrimSuffix(program, " (deleted)")
	h.notify(daemon.SdNotifyWatchdog) // the time of the next lines counts
	ctx, cancel := context.WithTimeout(context.Background(), versionTime)
	defer cancel()
	if out, err := exec.CommandContext(ctx, program, "-version").CombinedOutput(); err != nil {
		return fmt.Errorf("%s does not run: %w: %s", program, err, out)
	}
	file, err := listener.File()
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	passed := map[string]*os.File{flagListen: file}
	if h.rules != nil {
		passed[flagRules] = h.rules.file
	}
	if h.nat != nil {
		passed[flagNAT] = h.nat.file
	}
	if h.dns.rules != nil {
		passed[flagDNS] = h.dns.rules.file
	}
	arguments := slices.DeleteFunc(slices.Clone(os.Args), func(a string) bool {
		name, _, _ := strings.Cut(strings.TrimLeft(a, "-"), "=")
		return slices.Contains(descriptorFlags(), name)
	})
	for name, file := range passed {
		fd := int(file.Fd())
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return err
		}
		defer unix.CloseOnExec(fd) //nolint:gocritic // after a failed Exec
		arguments = append(arguments, "-"+name+"="+strconv.Itoa(fd))
	}
	return unix.Exec(program, arguments, os.Environ())
}
