package systemtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/probe/execprobe"
)

// probeScripts is a script that installs commands for health probes.
const probeScripts = `set -eu
mkdir -p /usr/local/lib/probes
cd /usr/local/lib/probes
cat >good <<'END'
#!/bin/sh
echo "in $PWD, HOME=$HOME, PATH=$PATH"
test "$PWD" = / && test -n "$PATH" && test -n "$HOME" && test -z "$INVOCATION_ID"
END
cat >leaves <<'END'
#!/bin/sh
setsid sleep 77771 >/dev/null 2>&1 &
setsid sh -c 'setsid sleep 77772 &' >/dev/null 2>&1
END
cat >hangs <<'END'
#!/bin/sh
setsid sleep 77773 >/dev/null 2>&1 &
exec sleep 77774
END
cat >rights <<'END'
#!/bin/sh
for file in /etc/outrider/outrider.toml /etc/outrider/token /proc/1/environ /run/credentials \
	/run/outrider /run/outrider-envoy /run/outrider-capture /var/lib/outrider; do
	if ls "$file"/ >/dev/null 2>&1 || cat "$file" >/dev/null 2>&1; then echo "reads $file"; fi
done
for socket in keeper capture resolved outrider probe; do
	curl -s --max-time 1 --unix-socket /run/outrider/$socket.sock http://a/ >/dev/null 2>&1
	test $? = 7 || echo "reaches $socket"
done
curl -s --max-time 1 http://127.0.0.1:80/ >/dev/null 2>&1 && echo "reaches the network"
for folder in /etc /usr /run /run/lock /var/lib; do
	touch $folder/x 2>/dev/null && echo "writes to $folder"
done
touch /dev/shm/x
test "$(id -u)" -lt 60000 && echo "is $(id -u)"
test "$(id -G)" = "$(id -g)" || echo "has groups $(id -G)"
exit 0
END
chmod 755 good leaves hangs rights
printf secret >/etc/outrider/token
chown outrider:outrider /etc/outrider/token
chmod 640 /etc/outrider/token`

// probeHost is a host whose agent can run commands as health probes.
type probeHost struct{ *Host }

func newProbeHost(t *testing.T) probeHost {
	t.Helper()
	h := probeHost{NewHost(t)}
	h.RunScript(probeScripts)
	h.MustRun(t, "systemctl", "start", "outrider.service")
	return h
}

// socket returns the path, outside of the machine, of the socket of outrider-probe.
func (h probeHost) socket() string {
	return fmt.Sprintf("/proc/%d/root/run/outrider/probe.sock", h.Leader())
}

// run runs a command through outrider-probe, as the agent does.
func (h probeHost) run(limit time.Duration, arguments ...string) error {
	ctx, cancel := context.WithTimeout(h.t.Context(), limit)
	defer cancel()
	return execprobe.NewRunner(h.socket()).Run(ctx, arguments)
}

const folder = "/usr/local/lib/probes"

func TestExecProbe_HasNoRightsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	h := newProbeHost(t)
	if err := h.run(time.Minute, folder+"/good"); err != nil {
		t.Error(err)
	}
	err := h.run(time.Minute, "sh", "-c", folder+"/rights; exit 3")
	if err == nil || !strings.HasPrefix(err.Error(), "exit status 3; it runs without rights") {
		t.Errorf("a command has rights: %v", err)
	}

	if err := h.run(time.Minute, folder+"/leaves"); err != nil {
		t.Error(err)
	}
	if err := h.run(time.Second, folder+"/hangs"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a command that hangs: %v", err)
	}
	h.Eventually(time.Minute, "nothing is left of probes", func() bool {
		return h.RunScript("pgrep -f 'sleep 7777[1-4]' || true; "+
			"systemctl list-units --all --no-legend 'outrider-probe@*'") == ""
	})
	if left := h.RunScript("ls /dev/shm /run/lock | grep x || true"); left != "" {
		t.Errorf("files of a probe are left: %s", left)
	}
	if lines := h.RunScript(
		"journalctl -q --no-pager -u 'outrider-probe@*' 2>/dev/null || true"); lines != "" {
		t.Errorf("probes fill the journal:\n%s", lines)
	}
}

// TestExecProbe_SaysWhyItFails replaces outrider-probe, which runs the commands, by a program that
// fails. The error refers to the journal. The journal has the reason, in few lines per probe.
func TestExecProbe_SaysWhyItFails(t *testing.T) {
	t.Parallel()
	h := newProbeHost(t)
	h.RunScript("cp /usr/bin/false /usr/libexec/outrider/outrider-probe")
	for range 3 {
		if err := h.run(time.Minute, "true"); err == nil ||
			!strings.Contains(err.Error(), "journalctl -u 'outrider-probe*'") {
			t.Error(err)
		}
	}
	const lines = "journalctl -q --no-pager -o cat -u 'outrider-probe@*'"
	if got := strings.Split(h.RunScript(lines), "\n"); len(got) > 3 {
		t.Errorf("lines of three probes that fail:\n%s", strings.Join(got, "\n"))
	}
	h.RunScript("install -m 0755 /opt/programs/outrider-probe /usr/libexec/outrider/outrider-probe")
	connection, err := net.Dial("unix", h.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	if _, err := connection.Write([]byte("no request\n")); err != nil {
		t.Fatal(err)
	}
	h.Eventually(time.Minute, "outrider-probe has said what is wrong", func() bool {
		return strings.Contains(h.RunScript(lines), "read the request to run a probe")
	})
}

func TestExecProbe_RefusesProgramsOfOthers(t *testing.T) {
	t.Parallel()
	h := newProbeHost(t)
	for change, want := range map[string]string{
		"chmod 777 " + folder: folder + ": other users may write to it",
		"chmod 755 " + folder + "; chown nobody " + folder + "/good": folder +
			"/good: belongs to user",
	} {
		h.RunScript(change)
		if err := h.run(time.Minute, folder+"/good"); err == nil ||
			!strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", change, err)
		}
		h.RunScript("chmod 755 " + folder)
	}
	h.RunScript("chown nobody " + folder + "/good")
	h.WriteText("/etc/outrider/conf.d/70-health.toml",
		"[discovery]\naddress = \"127.0.0.1:15110\"\n[health]\nexec = [\""+folder+"/good\"]\n")
	for _, command := range []string{"outrider reload", "outrider config check"} {
		said := h.RunScript(command + " 2>&1 && echo accepted || true")
		for _, want := range []string{"70-health.toml:4", "health.exec: ", "belongs to user",
			"chown root " + folder + "/good; or use http, tcp or unit"} {
			if !strings.Contains(said, want) {
				t.Errorf("%s does not say %q: %s", command, want, said)
			}
		}
	}
}

// TestExecProbe_SocketIsTheAgents opens many connections to the socket of outrider-probe. Those of
// another user are refused, and only a limited number of commands runs at a time.
func TestExecProbe_SocketIsTheAgents(t *testing.T) {
	t.Parallel()
	h := newProbeHost(t)
	flood := h.RunScript("for i in $(seq 200); do setpriv --reuid=nobody --clear-groups " +
		"curl -s --unix-socket /run/outrider/probe.sock http://a/ || echo $?; done | sort | uniq -c")
	if strings.Join(strings.Fields(flood), " ") != "200 7" {
		t.Errorf("connections of nobody: %s", flood)
	}
	if accepted := h.Property("outrider-probe.socket", "NAccepted"); accepted != "0" {
		t.Errorf("%s connections were accepted", accepted)
	}
	const runs = 10
	began := time.Now()
	for range runs {
		if err := h.run(time.Minute, "true"); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("a probe takes %s", (time.Since(began) / runs).Round(time.Millisecond))
	for range 40 {
		connection, err := net.Dial("unix", h.socket())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = connection.Close() }()
		// An error means that the connection was refused.
		_, _ = connection.Write([]byte(`{"Arguments":["sleep","1000"]}`))
	}
	h.Eventually(time.Minute, "connections beyond the limit are refused", func() bool {
		return h.Property("outrider-probe.socket", "NRefused") != "0"
	})
	if running := len(h.ProcessIDs("outrider-probe")); running > 32 {
		t.Errorf("%d probes run", running)
	}
}
