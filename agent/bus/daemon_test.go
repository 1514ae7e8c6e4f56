package bus

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"outrider.org/outrider/scripts/parts"
)

// testTime is the timeout of tests.
const testTime = 30 * time.Second

// daemon is a private system bus with the standard policy and the installed policy of the agent;
// tests may add a polkit.
type daemon struct {
	t       *testing.T
	folder  string
	command *exec.Cmd
	said    bytes.Buffer // output of the bus daemon, complete after its exit
}

const daemonConfiguration = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path=%s/bus</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <deny own="*"/>
    <deny send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
    <allow send_destination="org.freedesktop.DBus"/>
    <allow send_destination="org.freedesktop.PolicyKit1"/>
  </policy>
  <policy user="root">
    <allow own="org.freedesktop.PolicyKit1"/>
    <allow send_destination="org.freedesktop.DBus" send_interface="org.freedesktop.DBus.Monitoring"/>
  </policy>
  <include ignore_missing="no">%s</include>
</busconfig>
`

// newDaemon prepares a bus without starting it.
func newDaemon(t *testing.T) *daemon {
	t.Helper()
	d := &daemon{t: t, folder: parts.ShortDir(t)}
	if err := os.Chmod(d.folder, 0o755); err != nil { // other users need access, too
		t.Fatal(err)
	}
	policy := filepath.Join(parts.RepositoryRoot(), "packaging/dbus/org.outrider.Agent1.conf")
	configuration := fmt.Sprintf(daemonConfiguration, d.folder, policy)
	if err := os.WriteFile(d.folder+"/bus.conf", []byte(configuration), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.stop)
	return d
}

// startDaemon starts a bus that stops at the end of the test.
func startDaemon(t *testing.T) *daemon {
	t.Helper()
	d := newDaemon(t)
	d.start()
	return d
}

// configure replaces a part of the bus configuration. Call it before start.
func (d *daemon) configure(old, replacement string) {
	d.t.Helper()
	file := d.folder + "/bus.conf"
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte(strings.Replace(string(text), old, replacement, 1)), 0o644)
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) address() string { return "unix:path=" + d.folder + "/bus" }

func (d *daemon) start() {
	d.t.Helper()
	d.command = exec.Command("dbus-daemon", "--config-file="+d.folder+"/bus.conf", "--nofork",
		"--nopidfile", "--nosyslog")
	d.command.Stderr = &d.said
	d.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := d.command.Start(); err != nil {
		d.t.Fatal(err)
	}
	eventually(d.t, "the bus listens", func() bool {
		connection, err := net.Dial("unix", d.folder+"/bus")
		if err == nil {
			_ = connection.Close()
		}
		return err == nil
	})
}

func (d *daemon) stop() {
	if d.command == nil {
		return
	}
	_ = d.command.Process.Kill()
	_ = d.command.Wait()
	if d.t.Failed() {
		d.t.Logf("the bus said: %s", &d.said)
	}
	_ = os.Remove(d.folder + "/bus")
	d.command = nil
}

// connect returns a connection of root.
func (d *daemon) connect() *dbus.Conn {
	d.t.Helper()
	conn, err := dbus.Connect(d.address())
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// connectAs returns a connection of a user.
func (d *daemon) connectAs(uid int) (conn *dbus.Conn) {
	d.t.Helper()
	var err error
	parts.RunAs(d.t, uid, func() { conn, err = dbus.Dial(d.address()) })
	if err == nil {
		err = conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(uid))})
	}
	if err == nil {
		err = conn.Hello()
	}
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// nobody is an unprivileged user.
const nobody = 65534

// busctl runs busctl as a user and returns its trimmed output.
func (d *daemon) busctl(uid uint32, arguments ...string) (string, error) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), testTime)
	defer cancel()
	command := exec.CommandContext(ctx, "busctl",
		append([]string{"--address=" + d.address(), "--no-pager"}, arguments...)...)
	if uid != 0 {
		command.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	out, err := command.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// must is like busctl but fails the test on errors.
func (d *daemon) must(uid uint32, arguments ...string) string {
	d.t.Helper()
	out, err := d.busctl(uid, arguments...)
	if err != nil {
		d.t.Fatalf("busctl %s: %v: %s", strings.Join(arguments, " "), err, out)
	}
	return out
}

// eventually waits until so returns true, and fails the test after testTime.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	parts.Eventually(t, testTime, what, so)
}
