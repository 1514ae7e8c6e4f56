package hostconflict

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"outrider.org/outrider/agent/sockdiag"
)

// Mount points of the kernel's file systems.
const (
	procFolder   = "/proc"
	cgroupFolder = "/sys/fs/cgroup"
)

// ProgramOf describes the program that listens on a socket: "nginx (pid 12, nginx.service)". It
// returns "" if the program is unknown. Often only the unit is known, because the agent's unit
// hides processes of other users. It removes unprintable characters, because users choose the names
// of their processes and control groups.
func ProgramOf(s sockdiag.Socket) string {
	unit := printable(unitOf(cgroupFolder, s.CGroup))
	pid, name := processOf(procFolder, s.Inode)
	name = printable(name)
	switch {
	case name != "" && unit != "":
		return fmt.Sprintf("%s (pid %d, %s)", name, pid, unit)
	case name != "":
		return fmt.Sprintf("%s (pid %d)", name, pid)
	}
	return unit
}

func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, name)
}

// unitOf returns the unit whose control group has an ID, which is the inode of the group's
// directory.
func unitOf(root string, id uint64) string {
	if id == 0 {
		return ""
	}
	unit := ""
	_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil //nolint:nilerr // the process has ended meanwhile
		}
		info, err := entry.Info()
		if err != nil {
			return nil //nolint:nilerr // the process has ended meanwhile
		}
		if status, ok := info.Sys().(*syscall.Stat_t); !ok || status.Ino != id {
			return nil
		}
		unit = lastUnit(path)
		return filepath.SkipAll
	})
	return unit
}

// lastUnit returns the innermost service or scope in the path of a control group.
func lastUnit(path string) string {
	for ; path != "/" && path != "."; path = filepath.Dir(path) {
		if kind := filepath.Ext(path); kind == ".service" || kind == ".scope" {
			return filepath.Base(path)
		}
	}
	return ""
}

// processOf returns a process that has a socket open, if this process may read its descriptors.
func processOf(root string, inode uint32) (pid int, name string) {
	if inode == 0 {
		return 0, ""
	}
	want := fmt.Sprintf("socket:[%d]", inode)
	descriptors, _ := filepath.Glob(filepath.Join(root, "[0-9]*", "fd", "*"))
	for _, descriptor := range descriptors {
		if target, err := os.Readlink(descriptor); err != nil || target != want {
			continue
		}
		process := filepath.Dir(filepath.Dir(descriptor))
		text, err := os.ReadFile(filepath.Join(process, "comm"))
		if number, wrong := strconv.Atoi(filepath.Base(process)); err == nil && wrong == nil {
			return number, strings.TrimSpace(string(text))
		}
	}
	return 0, ""
}
