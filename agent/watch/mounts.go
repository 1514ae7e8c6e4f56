package watch

import (
	"bytes"
	"io"
	"os"
	"strings"
)

// mounts is the table of mounts of this process, which the kernel reports changes of.
type mounts struct {
	file  *os.File
	table map[string]bool // ID and mount point
}

func openMounts() (*mounts, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	m := &mounts{file: file}
	_, err = m.changed()
	return m, err
}

// await calls handle with the mount points that changed, until the file is closed. A mount that
// took the ID of another at the same point in the meantime cannot be detected: the point is then
// "/".
func (m *mounts) await(handle func(points []string)) {
	raw, err := m.file.SyscallConn()
	for first := true; err == nil; first = false {
		woken := false
		// The file is always readable; the poller wakes up when mounts change, and once at first.
		err = raw.Read(func(uintptr) bool { defer func() { woken = true }(); return woken })
		if err != nil {
			return
		}
		var points []string
		if points, err = m.changed(); err == nil && len(points) == 0 && !first {
			points = []string{"/"}
		}
		if len(points) > 0 {
			handle(points)
		}
	}
}

// changed returns the points of mounts that were added or removed since the last call.
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

// unescape undoes the kernel's escapes of a path.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
