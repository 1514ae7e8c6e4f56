package systemtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// systemd does not restart an agent that fails with a permanent error. The reason is in the last
// line of its output and in STATUS=. ERRNO= has the errno, if there is one.
func TestStart_PermanentErrorsAreNotRetried(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	if err := h.WriteFile(t.Context(), "/usr/local/bin/dying", []byte(parts.FailingEnvoy),
		0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, script, undo, exit, errno, sentence string }{
		{"no Envoy", "rm /usr/local/bin/envoy", "ln -s /opt/envoy/envoy /usr/local/bin/envoy", "69",
			"0", "tried /usr/lib/outrider/envoy, /usr/local/bin/envoy, /usr/bin/envoy, "},
		{"not the Envoy that is configured",
			"printf '[envoy]\\nbinary = \"/opt/none/envoy\"\\n' >/etc/outrider/conf.d/x.toml",
			"rm /etc/outrider/conf.d/x.toml",
			"69", "2", "/opt/none/envoy: no such file"}, // ENOENT
		{"no outrider-bootstrap", "mv /usr/libexec/outrider/outrider-bootstrap /root",
			"mv /root/outrider-bootstrap /usr/libexec/outrider", "69", "0",
			"neither /usr/sbin/outrider-bootstrap nor /usr/libexec/outrider/outrider-bootstrap can be " +
				"executed; install it at one of these paths"},
		{"another agent on the same configuration",
			"systemd-run --quiet --unit=another -p Type=notify -p User=outrider " +
				"-p SupplementaryGroups=outrider-envoy /usr/sbin/outriderd", "systemctl stop another.service",
			"73", "0", "another outriderd (pid "},
		{"an Envoy that always dies",
			"printf '[envoy]\\nbinary = \"/usr/local/bin/dying\"\\n" +
				"restart_limit = 2\\nrestart_backoff_min = \"10ms\"\\n' >/etc/outrider/conf.d/x.toml",
			"rm /etc/outrider/conf.d/x.toml", "75", "0", "it hurts"},
		{"invalid configuration", "echo 'nonsense = 1' >/etc/outrider/conf.d/x.toml",
			"rm /etc/outrider/conf.d/x.toml", "78", "0", "/etc/outrider/conf.d/x.toml:1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h.MustRun(t, "systemctl", "start", "outrider.service")
			h.MustRun(t, "systemctl", "stop", "outrider.service")
			h.RunScript(c.script)
			since := "@" + strings.TrimSpace(h.MustRun(t, "date", "+%s.%N"))
			if out, err := h.Run(t.Context(), "systemctl", "start",
				"outrider.service"); err == nil {
				t.Errorf("it starts: %s", out)
			}
			if exit, restarts := h.Property("outrider", "ExecMainStatus"),
				h.Property("outrider", "NRestarts"); exit != c.exit || restarts != "0" ||
				h.Property("outrider", "ActiveState") != "failed" {
				t.Errorf("exit %s, restarted %s times, %s", exit, restarts,
					h.Property("outrider", "ActiveState"))
			}
			if text, errno := h.Property("outrider", "StatusText"),
				h.Property("outrider", "StatusErrno"); !strings.Contains(text, c.sentence) ||
				errno != c.errno {
				t.Errorf("STATUS %q, ERRNO %s, want %q and %s", text, errno, c.sentence, c.errno)
			}
			// In the case with exit code 73, another agent responds to the command.
			if out, err := h.Run(t.Context(), "outrider", "status"); c.exit != "73" &&
				(err == nil || !strings.Contains(out, "outrider.service failed (exit code "+c.exit+
					"): ") || !strings.Contains(out, c.sentence)) {
				t.Errorf("outrider status: %v %s", err, out)
			}
			// The journal contains lines from standard output and from its native socket in no
			// certain order.
			var last string
			h.Eventually(time.Minute, "the journal has the end of the agent", func() bool {
				lines := strings.Split(h.Journal("-o", "cat", "-n", "20", "-u", "outrider.service",
					"SYSLOG_IDENTIFIER=outriderd", "--since", since), "\n")
				end := slices.IndexFunc(lines, func(line string) bool {
					return strings.HasPrefix(line, "outriderd: ")
				})
				if end < 0 {
					return false
				}
				last = lines[end]
				return true
			})
			if !strings.Contains(last, c.sentence) {
				t.Errorf("it ends with %q", last)
			}
			h.RunScript(c.undo)
		})
	}
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.MustServe()
	// systemd unloads an inactive unit that nothing references, and its STATUS=.
	h.MustRun(t, "systemctl", "enable", "outrider.service")
	h.MustRun(t, "systemctl", "stop", "outrider.service")
	if text := h.Property("outrider", "StatusText"); text != "stopped" {
		t.Errorf("STATUS %q after a stop", text)
	}
}
