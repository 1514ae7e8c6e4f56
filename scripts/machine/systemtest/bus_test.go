package systemtest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Names of the agent on the D-Bus system bus.
const (
	busName      = "org.outrider.Agent1"
	busObject    = "/org/outrider/Agent1"
	busManager   = "org.outrider.Agent1.Manager"
	busEpoch     = "org.outrider.Agent1.Epoch"
	busInterface = "/usr/share/dbus-1/interfaces"
)

// NewBusHost returns a host whose agent is connected to the system bus.
func NewBusHost(t *testing.T, more ...string) *Host {
	t.Helper()
	h := NewHost(t, more...)
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.OnBus(busName)
	return h
}

// OnBus waits until a process owns a name on the bus.
func (h *Host) OnBus(name string) {
	h.t.Helper()
	// An agent that has lost the bus retries at least every 30 seconds.
	h.Eventually(time.Minute, name+" is on the bus", func() bool {
		out, err := h.Run(h.t.Context(), "busctl", "list", "--acquired", "--no-legend")
		return err == nil && strings.Contains(out, name+" ")
	})
}

// As runs busctl as a user.
func (h *Host) As(user string, arguments ...string) (string, error) {
	return h.Run(h.t.Context(), "setpriv", append([]string{"--reuid=" + user, "--regid=" + user,
		"--init-groups", "busctl"}, arguments...)...)
}

// MustAs runs busctl as a user. An error of busctl fails the test.
func (h *Host) MustAs(user string, arguments ...string) string {
	h.t.Helper()
	out, err := h.As(user, arguments...)
	if err != nil {
		h.t.Errorf("as %s: %v", user, err)
	}
	return out
}

const users = "root nobody outrider" // an administrator (root) and two users who are not

// Every user may read all properties, and call the methods that only read.
func TestBus_EveryoneMayRead(t *testing.T) {
	t.Parallel()
	h := NewBusHost(t)
	h.RunScript("getent group nobody >/dev/null || groupadd nobody")
	live := h.LiveEpoch()
	epoch := fmt.Sprintf("%s/epoch/%d", busObject, live.Number)
	for user := range strings.FieldsSeq(users) {
		for property, want := range map[string]string{"State": `s "running"`, "Ready": "b true",
			"CurrentEpoch": "u 0", "UnitName": `s "outrider.service"`,
			"Instance": `s ""`, "DiscoveryState": `s "embedded"`, "EnvoyVersion": `s "1.40.0"`} {
			if got := h.MustAs(user, "get-property", busName, busObject, busManager,
				property); got != want {
				t.Errorf("as %s: %s is %s, want %s", user, property, got, want)
			}
		}
		if got, want := h.MustAs(user, "get-property", busName, epoch, busEpoch, "PID"),
			fmt.Sprint("u ", live.PID); got != want {
			t.Errorf("as %s: Envoy is %s, want %s", user, got, want)
		}
		if got := h.MustAs(user, "tree", "--list", busName); !strings.Contains(got, epoch) {
			t.Errorf("as %s: tree: %s", user, got)
		}
		if got := h.MustAs(user, "call", busName, busObject, busManager,
			"ListEpochs"); !strings.HasPrefix(got, fmt.Sprintf(`a(uosut) 1 0 %q "live" %d `, epoch,
			live.PID)) {
			t.Errorf("as %s: ListEpochs: %s", user, got)
		}
		for object, kind := range map[string]string{busObject: busManager, epoch: busEpoch} {
			// The agent serves each member of the installed interface file.
			installed := h.MustAs(user, "introspect", "--xml-interface", busName, object)
			for _, member := range strings.Fields(h.RunScript("grep -oE '<(method|signal|property) " +
				"name=\"[A-Za-z]+\"' " + busInterface + "/" + kind + ".xml | cut -d'\"' -f2")) {
				if !strings.Contains(installed, `name="`+member+`"`) {
					t.Errorf("as %s: %s has no %s", user, kind, member)
				}
			}
			if got := h.MustAs(user, "introspect", busName, object); !strings.Contains(got, kind) ||
				!strings.Contains(got, "emits-change") {
				t.Errorf("as %s: introspect %s: %s", user, object, got)
			}
		}
	}
	// An agent instance has its own bus name with the same objects.
	h.WriteText("/etc/outrider/web-1.toml", fmt.Sprintf(instanceConfiguration, 16000, 16001, 16002,
		16003, "web-1"))
	h.RunScript("mkdir -p /etc/outrider/web-1.mesh.d")
	h.MustRun(t, "systemctl", "start", "outrider@web-1.service")
	const instance = busName + ".Instance._web_2d1"
	h.OnBus(instance)
	if got := h.MustAs("nobody", "get-property", instance, busObject, busManager,
		"Instance"); got != `s "web-1"` {
		t.Errorf("the instance says it is %s", got)
	}

	// Only the agent's user and root may own the name. A read from a stopped agent does not start
	// it.
	own := func(user, name string) (string, error) {
		return h.As(user, "call", "org.freedesktop.DBus", "/org/freedesktop/DBus",
			"org.freedesktop.DBus", "RequestName", "su", name, "4")
	}
	if out, err := own("nobody", busName+".Instance._evil"); err == nil {
		t.Errorf("nobody may be an agent: %s", out)
	}
	if out, err := own("outrider", busName+".Instance._other"); err != nil {
		t.Errorf("the agent's user may not be an instance: %s", out)
	}
	h.MustRun(t, "systemctl", "stop", "outrider.slice")
	if out, err := h.As("root", "get-property", busName, busObject, busManager,
		"State"); err == nil {
		t.Errorf("a stopped agent says %s", out)
	}
	if state := h.Property("outrider", "ActiveState"); state != "inactive" {
		t.Errorf("looking made the agent %s", state)
	}
}

// drainTime is [envoy] drain_duration on the test host.
const drainTime = 2 * time.Second

// changing lists the methods that polkit must authorise, with their polkit actions.
var changing = []struct {
	action    string
	arguments []string
}{
	{"set-log-level", []string{busObject, busManager, "SetLogLevel", "ss", "agent", "info"}},
	{"inspect", []string{busObject, busManager, "CheckConfig", "s", ""}},
	{"inspect", []string{busObject, busManager, "DumpConfig"}},
	{"reload", []string{busObject, busManager, "Reload", "t", "1"}},
	{"drain", []string{busObject, busManager, "Drain", "t", "0"}},
	{"drain", []string{busObject, busManager, "Undrain"}},
	{"abort", []string{busObject + "/epoch/0", busEpoch, "Abort"}},
}

// polkit authorises each changing method. root needs no authorisation.
func TestBus_AdministratorsMayChange(t *testing.T) {
	t.Parallel()
	h := NewBusHost(t)
	h.RunScript("getent group nobody >/dev/null || groupadd nobody")
	call := func(user, interactive string, arguments []string) (string, error) {
		return h.As(user, append([]string{"--allow-interactive-authorization=" + interactive,
			"call", busName}, arguments...)...)
	}
	denied := func(user string, answers map[string]string) {
		t.Helper()
		for _, c := range changing {
			for interactive, want := range answers {
				out, err := call(user, interactive, c.arguments)
				if err == nil || !strings.Contains(out, strings.ReplaceAll(want, "ACTION",
					"org.outrider.agent1."+c.action)) {
					t.Errorf("as %s, interactive %s, %v: %v %s", user, interactive, c.arguments,
						err, out)
				}
			}
		}
	}
	before := h.LiveEpoch()
	for _, user := range []string{"nobody", "outrider-envoy"} {
		denied(user, map[string]string{"no": "ACTION needs a password",
			"yes": "polkit does not allow ACTION"})
	}
	if now := h.LiveEpoch(); now.PID != before.PID || h.Status().State != "running" {
		t.Errorf("denied calls did something: %+v", h.Status())
	}

	// An administrator permits a single action with a polkit rule.
	h.WriteText("/etc/polkit-1/rules.d/10-test.rules", `polkit.addRule(function (action, subject) {
	if (action.id == "org.outrider.agent1.drain" && subject.user == "nobody") return polkit.Result.YES;
});`)
	h.RunScript("chmod 755 /etc/polkit-1/rules.d; systemctl restart polkit.service")
	for _, c := range changing[4:6] {
		if out, err := call("nobody", "no", c.arguments); err != nil {
			t.Errorf("%v is not allowed by the rule: %s", c.arguments, out)
		}
	}
	// Undrain has restored the service, which must also work after the drain time.
	for end := time.Now().Add(2 * drainTime); time.Now().Before(end); {
		if got := h.EnvoyHTTPStatus(); got != "200" || !h.Status().Ready {
			t.Fatalf("after Undrain: %s, %+v", got, h.Status())
		}
	}
	if out, err := call("nobody", "no", changing[0].arguments); err == nil {
		t.Errorf("the rule allows more than it says: %s", out)
	}

	// Without polkit, only root may call the changing methods.
	h.RunScript("systemctl mask --now polkit.service; rm -f /etc/polkit-1/rules.d/10-test.rules")
	denied("nobody", map[string]string{"no": "not authorised"})
	for _, c := range changing {
		if c.action == "abort" {
			c.arguments = append([]string{fmt.Sprintf("%s/epoch/%d", busObject,
				h.LiveEpoch().Number)},
				c.arguments[1:]...)
		}
		if out, err := call("root", "no", c.arguments); err != nil {
			t.Errorf("root may not %v: %s", c.arguments, out)
		}
	}
	h.Eventually(time.Minute, "another Envoy stands in for the aborted one",
		func() bool { return h.EnvoyHTTPStatus() == "200" && h.Status().Ready })
	if log := h.Journal("-o", "cat", "OUTRIDER_COMPONENT=bus"); !strings.Contains(log,
		"refused a request over D-Bus method=Abort") ||
		!strings.Contains(log, "request over D-Bus method=Abort") {
		t.Errorf("the journal does not say who asked: %s", log)
	}
}

// The agent continues to work while the bus is down, and reconnects when it is up again.
func TestBus_ReturnsAfterRestart(t *testing.T) {
	t.Parallel()
	h := NewBusHost(t)
	agent := h.MainPID("outrider")
	h.MustRun(t, "systemctl", "stop", "dbus.socket", "dbus.service")
	h.MustServe()
	h.MustRun(t, "outrider", "reload")
	h.Eventually(time.Minute, "its absence is a condition",
		func() bool {
			return strings.Contains(fmt.Sprint(h.Status().Conditions),
				"bus-unavailable")
		})
	h.MustRun(t, "systemctl", "start", "dbus.socket", "dbus.service")
	h.Eventually(time.Minute, "the agent is back", func() bool {
		out, err := h.As("root", "get-property", busName, busObject, busManager, "CurrentEpoch")
		return err == nil && out == "u 1"
	})
	h.MustRun(t, "systemctl", "restart", "dbus.service")
	h.OnBus(busName)
	h.Eventually(time.Minute, "the condition is gone",
		func() bool { return len(h.Status().Conditions) == 0 })
	if now := h.MainPID("outrider"); now != agent {
		t.Errorf("agent %d became %d", agent, now)
	}
	// An agent that is stopped reads the type of systemd's job over the bus: Envoy continues if it
	// is a restart. That must work after the bus was restarted.
	before := h.LiveEpoch().PID
	h.MustRun(t, "systemctl", "restart", "outrider.service")
	if now := h.LiveEpoch().PID; now != before {
		t.Errorf("after the bus was restarted a restart of the agent made Envoy %d out of %d", now,
			before)
	}
}

// The agent works with dbus-broker, another implementation of the bus.
func TestBus_WithDbusBroker(t *testing.T) {
	t.Parallel()
	h := NewHost(t, packages(t, "dbus-broker")+":/opt/dbus-broker")
	h.RunScript("cp -a /opt/dbus-broker/. /; getent group nobody >/dev/null || groupadd nobody")
	h.RunScript("install -m 0644 /opt/dbus-broker/usr/lib/systemd/system/dbus-broker.service " +
		"/etc/systemd/system/dbus-broker.service")
	h.RunScript("systemctl stop dbus.service; ln -sf dbus-broker.service " +
		"/etc/systemd/system/dbus.service; systemctl daemon-reload; systemctl start dbus.service")
	h.Eventually(time.Minute, "dbus-broker runs",
		func() bool { return len(h.ProcessIDs("dbus-broker")) > 0 })
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.OnBus(busName)
	for user := range strings.FieldsSeq(users) {
		if got := h.MustAs(user, "get-property", busName, busObject, busManager,
			"Ready"); got != "b true" {
			t.Errorf("as %s: %s", user, got)
		}
		h.MustAs(user, "introspect", busName, busObject)
	}
	for _, c := range changing {
		if out, err := h.As("nobody", append([]string{"--allow-interactive-authorization=no",
			"call", busName}, c.arguments...)...); err == nil ||
			!strings.Contains(out, "needs a password") {
			t.Errorf("nobody may %v: %v %s", c.arguments, err, out)
		}
	}
	h.monitor("root", "/run/root.txt", "busctl", "monitor", "--json=short", busName)
	h.Eventually(time.Minute, "the monitor listens", func() bool {
		h.MustRun(t, "busctl", "--quiet", "call", busName, busObject, "org.freedesktop.DBus.Peer",
			"Ping")
		_, err := h.Run(t.Context(), "grep", "-q", "Ping", "/run/root.txt")
		return err == nil
	})
	if got := h.MustAs("root", "call", busName, busObject, busManager, "Reload", "t",
		"0"); !strings.HasPrefix(got, "t ") {
		t.Errorf("Reload: %s", got)
	}
	h.Eventually(time.Minute, "a signal says that the reload has ended", func() bool {
		_, err := h.Run(t.Context(), "grep", "-E", "-q",
			`"member":"ReloadFinished".*"restarted",1,`, "/run/root.txt")
		return err == nil
	})
	if out, err := h.As("nobody", "call", "org.freedesktop.DBus", "/org/freedesktop/DBus",
		"org.freedesktop.DBus", "RequestName", "su", busName+".Instance._evil", "4"); err == nil {
		t.Errorf("nobody may be an agent: %s", out)
	}

	// dbus-broker ignores send_destination_prefix in the installed policy. By the rules for
	// interfaces every user may call the methods of an instance, but its properties are readable
	// only with a rule for the instance.
	instance, read := busName+".Instance._web_2d1",
		[]string{"get-property", busName + ".Instance._web_2d1", busObject, busManager, "Ready"}
	h.Instance("web-1", 0)
	h.MustRun(t, "systemctl", "start", "outrider@web-1.service")
	h.OnBus(instance)
	if got := h.MustAs("nobody", "call", instance, busObject, busManager,
		"ListEpochs"); !strings.HasPrefix(got, "a(uosut) 1 0 ") {
		t.Errorf("the epochs of the instance: %s", got)
	}
	if out, err := h.As("nobody", read...); err == nil || !strings.Contains(out, "Access denied") {
		t.Errorf("without a rule: %v %s", err, out)
	}
	h.WriteText("/etc/dbus-1/system.d/outrider-web-1.conf",
		`<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><policy context="default"><allow send_destination="`+instance+`"/></policy></busconfig>
`)
	h.MustRun(t, "systemctl", "reload", "dbus.service")
	if got := h.MustAs("nobody", read...); got != "b true" {
		t.Errorf("with a rule: %s", got)
	}
}
