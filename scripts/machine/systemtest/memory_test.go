package systemtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/machine"
	"outrider.org/outrider/scripts/rig"
)

func TestUnits_HaveLimits(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	const none = "infinity"
	for unit, want := range map[string][3]string{ // MemoryMax, MemorySwapMax, TasksMax
		"outrider.service":              {"3221225472", "0", "2048"},
		"outrider@web.service":          {"3221225472", "0", "2048"},
		"outrider-envoy.service":        {none, "0", "16384"},
		"outrider-envoy@web.service":    {none, "0", "16384"},
		"outrider-capture.service":      {"1073741824", none, "64"},
		"outrider-capture@web.service":  {"1073741824", none, "64"},
		"outrider-resolved@web.service": {"67108864", none, "64"},
		"outrider-probe@web.service":    {"134217728", "0", "64"},
	} {
		for i, property := range []string{"MemoryMax", "MemorySwapMax", "TasksMax"} {
			if got := h.Property(unit, property); got != want[i] {
				t.Errorf("%s: %s is %s, want %s", unit, property, got, want[i])
			}
		}
	}
	if got := h.Property("outrider-seal.service", "MemorySwapMax"); got != "0" {
		t.Errorf("outrider-seal.service: MemorySwapMax is %s", got)
	}
}

// limitGroup is a control group of this host to which a process of a machine is moved, to limit it.
// With control groups of version 1 a machine has no controllers, so the limits of its units have no
// effect.
type limitGroup struct {
	t      *testing.T
	folder string
}

// newLimitGroup creates a control group in which a controller, memory or pids, is enabled.
func newLimitGroup(t *testing.T, controller string) *limitGroup {
	t.Helper()
	root := filepath.Join("/sys/fs/cgroup", controller)
	if _, err := os.Stat(root); err != nil { // version 2, whose controllers share one hierarchy
		root = "/sys/fs/cgroup"
		g := &limitGroup{t, root}
		g.write("cgroup.subtree_control", "+"+controller)
	}
	g := &limitGroup{t, filepath.Join(root, fmt.Sprintf("outrider-test-%d-%s", os.Getpid(),
		strings.ToLower(t.Name())))}
	if err := os.Mkdir(g.folder, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for pid := range strings.FieldsSeq(g.read("cgroup.procs")) {
			g.write("../cgroup.procs", pid)
		}
		if err := os.Remove(g.folder); err != nil {
			t.Error(err)
		}
	})
	return g
}

func (g *limitGroup) read(file string) string {
	g.t.Helper()
	text, err := os.ReadFile(filepath.Join(g.folder, file))
	if err != nil {
		g.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// write writes text to the first of the group's files that exists. files has their names in
// versions 1 and 2, separated by spaces.
func (g *limitGroup) write(files, text string) {
	g.t.Helper()
	for file := range strings.FieldsSeq(files) {
		path := filepath.Join(g.folder, file)
		if _, err := os.Stat(path); err == nil {
			if err := os.WriteFile(path, []byte(text), 0); err != nil {
				g.t.Fatal(err)
			}
			return
		}
	}
	g.t.Fatalf("no %s in %s", files, g.folder)
}

// hostPID returns the PID that a process of a machine has on this host.
func hostPID(t *testing.T, m *machine.Machine, pid int) int {
	t.Helper()
	namespace := func(pid string) string {
		link, _ := os.Readlink(filepath.Join("/proc", pid, "ns/pid")) // the process may have exited
		return link
	}
	wanted := namespace(strconv.Itoa(m.Leader()))
	all, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		status, _ := os.ReadFile(path)
		_, after, _ := strings.Cut(string(status), "\nNSpid:")
		line, _, _ := strings.Cut(after, "\n")
		numbers := strings.Fields(line)
		if len(numbers) < 2 || numbers[len(numbers)-1] != strconv.Itoa(pid) ||
			namespace(numbers[0]) != wanted {
			continue
		}
		if found, err := strconv.Atoi(numbers[0]); err == nil {
			return found
		}
	}
	t.Fatalf("process %d of %s is not found", pid, m.Name())
	return 0
}

// An agent that exceeds its memory limit is killed by the kernel and restarted. Envoy continues,
// and no request is lost.
func TestMemory_AgentBeyondItsLimitComesBack(t *testing.T) {
	h := NewHost(t)
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.MustServe()
	before := h.LiveEpoch()
	agent := h.MainPID("outrider.service")
	load := h.StartLoad(standard() / 5)
	group := newLimitGroup(t, "memory")
	// Memory that the agent has allocated before it is moved to the group does not count.
	group.write("memory.limit_in_bytes memory.max", strconv.Itoa(8<<20))
	group.write("cgroup.procs", strconv.Itoa(hostPID(t, h.Machine, agent)))
	var more strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&more, "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\n"+
			"metadata: {name: more%d}\nspec:\n  hosts: [more%d.test]\n  resolution: STATIC\n"+
			"  ports: [{number: 90, name: http, protocol: HTTP}]\n"+
			"  endpoints: [{address: 127.0.0.1, ports: {http: 9000}}]\n---\n", i, i)
	}
	h.WriteText("/etc/outrider/mesh.d/more.yaml", more.String())
	h.Eventually(time.Minute, "the agent is killed and comes back", func() bool {
		now := h.MainPID("outrider.service")
		return now != 0 && now != agent
	})
	h.MustRun(t, "outrider", "wait", "--timeout", "1m")
	if journal := h.Journal("-u", "outrider.service"); !strings.Contains(journal, "status=9/KILL") {
		t.Errorf("nobody killed the agent: %s", journal)
	}
	if now := h.LiveEpoch(); now.PID != before.PID {
		t.Errorf("another Envoy: %+v after %+v", now, before)
	}
	h.Eventually(time.Minute, "Envoy has the new services", func() bool {
		out, err := h.Run(t.Context(), "curl", "-fs", "-m", "5", "-o", "/dev/null", "-H",
			"Host: more1999.test", "http://127.0.0.1:90/")
		if err != nil {
			t.Log(out)
		}
		return err == nil
	})
	report := load.Stop()
	if lost := rig.CountLosses(report, nil); len(lost) > 0 || report.Total == 0 {
		t.Errorf("%d of %d requests are lost: %v", report.Lost, report.Total, lost)
	}
}

// While the agent cannot create processes, a reload fails or ends the agent, which is then
// restarted. Later a reload succeeds. No request to Envoy is lost.
func TestTasks_AgentAtItsLimitRecovers(t *testing.T) {
	h := NewHost(t)
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.MustServe()
	agent := h.MainPID("outrider.service")
	load := h.StartLoad(standard() / 5)
	group := newLimitGroup(t, "pids")
	group.write("cgroup.procs", strconv.Itoa(hostPID(t, h.Machine, agent)))
	group.write("pids.max", group.read("pids.current"))
	h.WriteText("/etc/outrider/conf.d/70-drain.toml", "[envoy]\ndrain_duration = \"3s\"\n")
	if out, err := h.Run(t.Context(), "outrider", "reload"); err == nil {
		t.Errorf("reloaded without a process for the bootstrap: %s", out)
	} else {
		t.Log(out)
	}
	h.MustServe()
	group.write("pids.max", "max")
	h.Eventually(time.Minute, "the agent reloads", func() bool {
		_, err := h.Run(t.Context(), "outrider", "reload")
		return err == nil
	})
	report := load.Stop()
	if lost := rig.CountLosses(report, nil); len(lost) > 0 || report.Total == 0 {
		t.Errorf("%d of %d requests are lost: %v", report.Lost, report.Total, lost)
	}
}
