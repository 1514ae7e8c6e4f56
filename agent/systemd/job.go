package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"outrider.org/outrider/agent/backoff"
)

// UnitJob is the type of the systemd job that stops the agent.
type UnitJob string

// Jobs that the agent distinguishes.
const (
	JobStop UnitJob = "stop" // Envoy terminates too
	// JobRestart is restart or try-restart, also during a package upgrade: Envoy continues serving.
	JobRestart UnitJob = "restart"
)

// stopTimeout is TimeoutStopSec= of the agent's units. The agent extends it while it is stopping.
const stopTimeout = 90 * time.Second

const (
	// jobTime limits the retries of the query. A long limit is acceptable, because systemd waits
	// for the agent to stop, and a wrong result terminates Envoy.
	jobTime  = stopTimeout / 2
	jobPause = 100 * time.Millisecond // between attempts
)

// Manager queries systemd.
type Manager struct {
	Bus string // path of the bus socket; "" = the system bus
	// CGroup is the path of the file with the process's control group; "" = /proc/self/cgroup.
	CGroup string
}

const (
	systemBus  = "/run/dbus/system_bus_socket"
	selfCGroup = "/proc/self/cgroup"

	managerName   = "org.freedesktop.systemd1"
	unitInterface = managerName + ".Unit"
	jobInterface  = managerName + ".Job"
	unitsPath     = "/org/freedesktop/systemd1/unit/"
)

// OwnUnit returns the name of the unit in which this process runs.
func (m Manager) OwnUnit() (string, error) {
	path := m.CGroup
	if path == "" {
		path = selfCGroup
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("find the agent's unit: %w", err)
	}
	return unitOf(string(content))
}

// unitOf returns the service in the content of /proc/PID/cgroup (cgroups(7)). The line that begins
// with 0:: has the path in cgroup v2, which systemd uses. A unit may contain nested control groups.
func unitOf(content string) (string, error) {
	for line := range strings.Lines(content) {
		group, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		if !ok {
			continue
		}
		names := strings.Split(group, "/")
		for i := len(names) - 1; i >= 0; i-- {
			if strings.HasSuffix(names[i], ".service") {
				return names[i], nil
			}
		}
		return "",
			fmt.Errorf("find the agent's unit: control group %s belongs to no service", group)
	}
	return "", errors.New("find the agent's unit: the agent is in no cgroup of cgroup v2")
}

// CurrentJob returns the current systemd job of the agent's unit. If systemd does not reply, it
// retries for half of stopTimeout. If there is no job, no bus or no reply, it returns JobStop and
// an error with the reason.
func (m Manager) CurrentJob(ctx context.Context) (UnitJob, error) {
	return m.jobWithin(ctx,
		jobTime)
}

func (m Manager) jobWithin(ctx context.Context, limit time.Duration) (UnitJob, error) {
	unit, err := m.OwnUnit()
	if err != nil {
		return JobStop, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	kind, err := m.jobType(ctx, unit)
	for err != nil && mayAnswer(err) && backoff.Sleep(ctx, jobPause) == nil {
		kind, err = m.jobType(ctx, unit)
	}
	if err != nil {
		return JobStop, fmt.Errorf("get the systemd job of %s: %w", unit, err)
	}
	switch kind {
	case "restart", "try-restart":
		return JobRestart, nil
	case "stop":
		return JobStop, nil
	case "":
		return JobStop, fmt.Errorf("%s has no systemd job: the signal did not come from systemd",
			unit)
	default:
		return JobStop, fmt.Errorf(
			"get the systemd job of %s: its type %s is neither a stop nor a restart", unit, kind)
	}
}

// mayAnswer reports whether a retry may succeed: the bus exists and access is allowed.
func mayAnswer(err error) bool {
	onBus, _ := errors.AsType[dbus.Error](err)
	return !errors.Is(err, fs.ErrNotExist) &&
		onBus.Name != "org.freedesktop.DBus.Error.AccessDenied"
}

// jobType returns the type of a unit's job, or "" if it has none.
func (m Manager) jobType(ctx context.Context, unit string) (string, error) {
	bus, err := m.connect(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = bus.Close() }()
	var job struct {
		ID   uint32
		Path dbus.ObjectPath
	}
	if err := property(ctx, bus, pathOf(unit), unitInterface, "Job", &job); err != nil ||
		job.ID == 0 {
		return "", err
	}
	var kind string
	err = property(ctx, bus, job.Path, jobInterface, "JobType", &kind)
	return kind, err
}

// ActiveState returns the state of a unit: active, inactive, failed and others of systemd(1).
func (m Manager) ActiveState(ctx context.Context, unit string) (state string, err error) {
	bus, err := m.connect(ctx)
	if err == nil {
		defer func() { _ = bus.Close() }()
		err = property(ctx, bus, pathOf(unit), unitInterface, "ActiveState", &state)
	}
	if err != nil {
		return "", fmt.Errorf("get the systemd state of %s: %w", unit, err)
	}
	return state, nil
}

func pathOf(unit string) dbus.ObjectPath {
	return unitsPath + dbus.ObjectPath(systemd.PathBusEscape(unit))
}

// connect opens a private bus connection that is closed when ctx ends.
func (m Manager) connect(ctx context.Context) (*dbus.Conn, error) {
	path := m.Bus
	if path == "" {
		path = systemBus
	}
	bus, err := dbus.Connect("unix:path="+dbus.EscapeBusAddressValue(path), dbus.WithContext(ctx))
	// err only says that the connection is closed, because ctx has ended
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("no reply: %w; run \"systemctl status dbus\"", ctx.Err())
	}
	if err != nil {
		return nil, fmt.Errorf("connect to D-Bus: %w", err)
	}
	return bus, nil
}

func property(ctx context.Context, bus *dbus.Conn, path dbus.ObjectPath, of, name string,
	value any) error {
	var found dbus.Variant
	call := bus.Object(managerName, path).CallWithContext(ctx,
		"org.freedesktop.DBus.Properties.Get", dbus.FlagNoAutoStart, of, name)
	if err := call.Store(&found); err != nil {
		return fmt.Errorf("get the property %s: %w", name, err)
	}
	return found.Store(value)
}
