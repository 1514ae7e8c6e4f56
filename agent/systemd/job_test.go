package systemd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"outrider.org/outrider/scripts/parts"
)

func TestUnitOf(t *testing.T) {
	for _, c := range []struct{ content, want, problem string }{
		{"0::/outrider.slice/outrider.service\n", "outrider.service", ""},
		{
			"12:pids:/system.slice/other.service\n1:name=systemd:/x\n" +
				"0::/outrider.slice/outrider@a.service\n",
			"outrider@a.service", ""},
		{"0::/outrider.slice/outrider.service/agent\n", "outrider.service", ""},
		{"0::/../../outrider.slice/outrider.service", "outrider.service", ""},
		{"0::/user.slice/session-1.scope\n", "", "belongs to no service"},
		{"1:name=systemd:/x.service\n", "", "cgroup v2"},
		{"", "", "cgroup v2"},
	} {
		got, err := unitOf(c.content)
		if got != c.want || (err == nil) != (c.problem == "") ||
			err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%q: %q, %v", c.content, got, err)
		}
	}
}

const busConfiguration = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path=SOCKET</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`

// startBus starts a private bus.
func startBus(t *testing.T) string {
	t.Helper()
	dir := parts.ShortDir(t)
	socket, file := filepath.Join(dir, "bus"), filepath.Join(dir, "bus.conf")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(busConfiguration, "SOCKET", socket)),
		0o600); err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command("dbus-daemon", "--nofork", "--config-file="+file)
	if err := daemon.Start(); err != nil {
		t.Fatalf("start a bus: %v; install dbus (scripts/setup test)", err)
	}
	t.Cleanup(func() { _ = daemon.Process.Kill(); _ = daemon.Wait() })
	parts.Eventually(t, time.Minute, "the bus listens", func() bool {
		probe, err := net.Dial("unix", socket)
		if err == nil {
			_ = probe.Close()
		}
		return err == nil
	})
	return socket
}

// serviceManager is a fake systemd with one unit and its job.
type serviceManager struct {
	unit string        // name of the unit, escaped for an object path; "" = outrider.service
	kind string        // type of the job; "" = no job
	wait chan struct{} // if not nil, replies wait until it is closed
}

const jobPath = "/org/freedesktop/systemd1/job/7"

func (s *serviceManager) Get(message dbus.Message, of, name string) (dbus.Variant, *dbus.Error) {
	if s.wait != nil {
		<-s.wait
	}
	path := message.Headers[dbus.FieldPath].Value().(dbus.ObjectPath)
	unit := dbus.ObjectPath(unitsPath + cmp.Or(s.unit, "outrider_2eservice"))
	type job struct {
		ID   uint32
		Path dbus.ObjectPath
	}
	switch {
	case path == jobPath && of == jobInterface && name == "JobType":
		return dbus.MakeVariant(s.kind), nil
	case path == unit && of == unitInterface && name == "Job" && s.kind == "":
		return dbus.MakeVariant(job{0, "/"}), nil
	case path == unit && of == unitInterface && name == "Job":
		return dbus.MakeVariant(job{7, jobPath}), nil
	}
	return dbus.Variant{},
		dbus.NewError("org.freedesktop.DBus.Error.UnknownObject", []any{string(path)})
}

func (s *serviceManager) export(t *testing.T, socket string) {
	t.Helper()
	bus, err := dbus.Connect("unix:path=" + socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bus.Close() })
	if err := bus.ExportSubtree(s, "/org/freedesktop/systemd1",
		"org.freedesktop.DBus.Properties"); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.RequestName(managerName, dbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
}

func cgroupFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cgroup")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestJob(t *testing.T) {
	const ours = "0::/outrider.slice/outrider.service\n"
	for _, c := range []struct {
		name, kind, cgroup string
		want               UnitJob
		problem            string
	}{
		{"restart", "restart", ours, JobRestart, ""},
		{"try-restart", "try-restart", ours, JobRestart, ""},
		{"stop", "stop", ours, JobStop, ""},
		{"start", "start", ours, JobStop, "type start"},
		{"none", "", ours, JobStop, "has no systemd job"},
		{"no unit", "restart", "0::/init.scope\n", JobStop, "belongs to no service"},
	} {
		t.Run(c.name, func(t *testing.T) {
			socket := startBus(t)
			(&serviceManager{kind: c.kind}).export(t, socket)
			job, err := Manager{Bus: socket, CGroup: cgroupFile(t,
				c.cgroup)}.CurrentJob(t.Context())
			if job != c.want || (err == nil) != (c.problem == "") {
				t.Fatalf("%q, %v", job, err)
			}
			if err != nil && !strings.Contains(err.Error()+dbusName(err), c.problem) {
				t.Errorf("%v", err)
			}
		})
	}
}

func dbusName(err error) string {
	onBus, _ := errors.AsType[dbus.Error](err)
	return onBus.Name
}

// If the job cannot be determined, it counts as a stop: after the time limit, or at once if there
// is no bus.
func TestJobUnknown(t *testing.T) {
	cgroup := cgroupFile(t, "0::/outrider.slice/outrider.service\n")
	dir := parts.ShortDir(t)
	mute := filepath.Join(dir, "mute")
	listener, err := net.Listen("unix", mute) // accepts connections but never replies
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	hung := startBus(t)
	wait := make(chan struct{})
	(&serviceManager{kind: "restart", wait: wait}).export(t, hung)
	defer close(wait)
	other := startBus(t)
	(&serviceManager{kind: "restart", unit: "other_2eservice"}).export(t, other)
	for name, socket := range map[string]string{"no bus": filepath.Join(dir, "none"),
		"mute bus": mute, "no systemd": startBus(t), "hung systemd": hung,
		"unknown unit": other} {
		const limit = 600 * time.Millisecond
		began := time.Now()
		job, err := Manager{Bus: socket, CGroup: cgroup}.jobWithin(t.Context(), limit)
		took := time.Since(began)
		if job != JobStop || err == nil {
			t.Errorf("%s: %q, %v", name, job, err)
		}
		if waits := name != "no bus"; waits && took < limit || !waits && took >= limit ||
			took > limit+10*time.Second {
			t.Errorf("%s: decided after %v", name, took)
		}
		if name == "mute bus" && (!errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "systemctl status dbus")) {
			t.Errorf("%s: %v", name, err)
		}
		t.Logf("%s: %v", name, err)
	}
}

func TestJob_AsksUntilSystemdAnswers(t *testing.T) {
	socket := startBus(t)
	manager := Manager{Bus: socket, CGroup: cgroupFile(t, "0::/outrider.slice/outrider.service\n")}
	answer := make(chan error, 1)
	go func() {
		job, err := manager.CurrentJob(t.Context())
		if err == nil && job != JobRestart {
			err = fmt.Errorf("job %q", job)
		}
		answer <- err
	}()
	time.Sleep(5 * jobPause) //house:sleep systemd is off the bus for this time
	(&serviceManager{kind: "restart"}).export(t, socket)
	if err := <-answer; err != nil {
		t.Error(err)
	}
}

func TestStopTimeout_IsTheUnits(t *testing.T) {
	want := fmt.Sprintf("\nTimeoutStopSec=%ds\n", int(stopTimeout.Seconds()))
	for _, name := range []string{"outrider.service", "outrider@.service"} {
		unit, err := os.ReadFile(filepath.Join(parts.RepositoryRoot(), "units", name))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(unit), want) {
			t.Errorf("%s has no %q", name, want)
		}
	}
}
