package watch

import (
	"bytes"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// mounts is the table of mounts of this process. The kernel reports a change once for each open
// file of the table.
type mounts struct {
	file  *os.File        // Go's poller waits for reports of the kernel on this file
	other *os.File        // polled directly: Go's poller would consume the kernel's report
	table map[string]bool // keys are ID and mount point
}

func openMounts() (*mounts, error) {
	const path = "/proc/self/mountinfo"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	m := &mounts{other: os.NewFile(uintptr(fd), path)}
	if m.file, err = os.Open(path); err != nil {
		_ = m.other.Close()
		return nil, err
	}
	if _, err = m.changed(); err != nil {
		_, _ = m.file.Close(), m.other.Close()
		return nil, err
	}
	return m, nil
}

// await calls handle with the mount points that changed, until the file is closed. If a mount
// replaces another one with the same ID and mount point, the table is equal, and handle is called
// with "/".
func (m *mounts) await(handle func(points []string)) {
	defer func() { _ = m.other.Close() }()
	raw, err := m.file.SyscallConn()
	for err == nil {
		// If reported returns false, raw.Read waits for the next report.
		if err = raw.Read(func(uintptr) bool { return m.reported() }); err != nil {
			return
		}
		var points []string
		if points, err = m.changed(); err == nil {
			if len(points) == 0 {
				points = []string{"/"}
			}
			handle(points)
		}
	}
}

// reported reports whether mounts have changed since its last call.
func (m *mounts) reported() bool {
	fds := []unix.PollFd{{Fd: int32(m.other.Fd()), Events: unix.POLLPRI}} //nolint:gosec // a descriptor
	n, err := unix.Poll(fds, 0)
	return err != nil || n > 0 && fds[0].Revents&(unix.POLLPRI|unix.POLLERR) != 0
}

// changed returns the mount points of mounts that were added or removed since its last call.
func (m *mounts) changed() ([]string, error) {
	text, err := io.ReadAll(io.NewSectionReader(m.file, 0, 1<<24))
	if err != nil {
		return nil, err
	}
	now := map[string]bool{}
	for line := range bytes.Lines(text) {
		if fields := strings.SplitN(string(line), " ", 6); len(fields) == 6 {
			now[fields[0]+" "+unescape.Replace(fields[4])] = true
		}
	}
	var points []string
	differ := func(one, other map[string]bool) {
		for key := range one {
			if !other[key] {
				_, point, _ := strings.Cut(key, " ")
				points = append(points, point)
			}
		}
	}
	differ(now, m.table)
	differ(m.table, now)
	m.table = now
	return points, nil
}

// unescape decodes the escape sequences that the kernel writes in paths.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
