package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cgroupPrefix begins the name of each machine's control group. It is followed by the PID of the
// process that booted the machine.
const cgroupPrefix = "outrider-machine-"

// cgroupRoot returns the mount point of the unified cgroup hierarchy, which differs in systemd's
// hybrid mode.
func cgroupRoot() string {
	const hybrid = "/sys/fs/cgroup/unified"
	if _, err := os.Stat(hybrid + "/cgroup.procs"); err == nil {
		return hybrid
	}
	return "/sys/fs/cgroup"
}

func cgroupName(machine string) string {
	return fmt.Sprintf("%s%d-%s", cgroupPrefix, os.Getpid(), machine)
}

// sweep removes the control groups and empty directories of machines whose owner, the process that
// booted them, was killed.
func sweep() {
	groups, err := filepath.Glob(filepath.Join(cgroupRoot(), cgroupPrefix+"*"))
	if err != nil {
		return
	}
	for _, group := range groups {
		owner, name, _ := strings.Cut(strings.TrimPrefix(filepath.Base(group), cgroupPrefix), "-")
		pid, err := strconv.Atoi(owner)
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = removeCgroup(group, time.Now()) // fails while a process is left in the group
			_ = os.Remove(filepath.Join(parent, name))
			_ = os.Remove(filepath.Join(parent, name+notifySuffix))
		}
	}
}

// findLeader returns the host PID of the machine's PID 1: the process in the machine's init.scope
// that has PID 1 in its PID namespace.
func findLeader(cgroup string) (int, error) {
	processes, err := os.ReadFile(filepath.Join(cgroup, "payload", "init.scope", "cgroup.procs"))
	if err != nil {
		return 0, fmt.Errorf("find the machine's PID 1: %w", err)
	}
	for pid := range strings.FieldsSeq(string(processes)) {
		status, err := os.ReadFile(filepath.Join("/proc", pid, "status"))
		if err != nil {
			continue // the process has exited
		}
		for line := range strings.Lines(string(status)) {
			if pids, ok := strings.CutPrefix(line, "NSpid:"); ok &&
				strings.HasSuffix(strings.TrimSpace(pids), "\t1") {
				return strconv.Atoi(pid)
			}
		}
	}
	return 0, fmt.Errorf("find the machine's PID 1: none of the processes %q has PID 1 in its PID namespace",
		strings.Fields(string(processes)))
}

// removeCgroup removes a control group and its children. It waits until deadline for processes in
// them to exit.
func removeCgroup(path string, deadline time.Time) error {
	for {
		err := removeTree(path)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("remove the machine's control group: %w", err)
		}
		time.Sleep(10 * time.Millisecond) // the kernel does not notify when a group becomes empty
	}
}

// removeTree removes a tree of cgroup directories, the deepest first. Their files are virtual and
// cannot be removed.
func removeTree(path string) error {
	var folders []string
	err := filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			folders = append(folders, name)
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Reverse(folders)
	for _, folder := range folders {
		if err := os.Remove(folder); err != nil {
			return err
		}
	}
	return nil
}
