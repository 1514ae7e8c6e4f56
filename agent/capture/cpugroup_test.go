package capture

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// cpuGroup is a control group limited to a twentieth of a processor. It uses cgroup version 1 where
// version 2 has no cpu controller.
type cpuGroup struct {
	t      *testing.T
	folder string
	second bool // the group is of cgroup version 2
}

func newCPUGroup(t *testing.T) *cpuGroup {
	t.Helper()
	g := &cpuGroup{t: t}
	controllers, err := os.ReadFile(filepath.Join(cgroupRoot(t), "cgroup.controllers"))
	if err != nil {
		t.Fatal(err)
	}
	root := "/sys/fs/cgroup/cpu"
	if g.second = strings.Contains(" "+string(controllers), " cpu "); g.second {
		root = cgroupRoot(t)
		g.folder = root
		g.write("cgroup.subtree_control", "+cpu")
	}
	g.folder = filepath.Join(root, fmt.Sprintf("outrider-test-%d", os.Getpid()))
	if err := os.Mkdir(g.folder, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(g.folder); err != nil {
			t.Error(err)
		}
	})
	if g.second {
		g.write("cpu.max", "5000 100000")
	} else {
		g.write("cpu.cfs_quota_us", "5000") // of a period of 100000 µs
	}
	return g
}

func (g *cpuGroup) write(file, text string) {
	g.t.Helper()
	if err := os.WriteFile(filepath.Join(g.folder, file), []byte(text), 0); err != nil {
		g.t.Fatal(err)
	}
}

// move moves a process into the group until the test ends.
func (g *cpuGroup) move(pid int) {
	g.t.Helper()
	g.write("cgroup.procs", strconv.Itoa(pid))
	g.t.Cleanup(func() { g.write("../cgroup.procs", strconv.Itoa(pid)) })
}

func (g *cpuGroup) lift() {
	g.t.Helper()
	if g.second {
		g.write("cpu.max", "max 100000")
	} else {
		g.write("cpu.cfs_quota_us", "-1")
	}
}

// processorTime returns the time that a process has used.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // after the program's name
	fields := strings.Fields(rest)
	const user, system, tick = 11, 12, 10 * time.Millisecond
	var all time.Duration
	for _, field := range []int{user, system} {
		ticks, err := strconv.Atoi(fields[field])
		if err != nil {
			t.Fatal(err)
		}
		all += time.Duration(ticks) * tick
	}
	return all
}
