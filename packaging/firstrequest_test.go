package packaging

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/machine"
	"outrider.org/outrider/scripts/parts"
)

// TestFirstRequest_WithThePackageAlone runs the commands of README.Debian, up to the first
// response, on a machine without Envoy. Purging then leaves nothing.
func TestFirstRequest_WithThePackageAlone(t *testing.T) {
	t.Parallel()
	h := &host{t: t, Machine: machine.BootForTest(t, machine.Options{BindMounts: []string{
		shared.old(t) + ":" + oldPlace, filepath.Dir(parts.EnvoyPath(t)) + ":/opt/envoy"}})}
	h.script("rm -f /usr/sbin/policy-rc.d /usr/local/bin/envoy /usr/bin/envoy")
	h.saysFirstSteps(h.script(installDeb + deb(oldPlace, oldVersion)))
	// An envoy that is found only with the caller's $PATH has no effect.
	h.script("install -D /bin/true /opt/shims/envoy")
	readme, err := os.ReadFile("README.Debian")
	if err != nil {
		t.Fatal(err)
	}
	commands, _, _ := strings.Cut(string(readme), "What there is to read:")
	began, ran, answers := time.Now(), 0, 0
	for line := range strings.Lines(commands) {
		command, found := strings.CutPrefix(line, "    ")
		if !found {
			continue
		}
		// The machine has no network: install from a file.
		command = strings.Replace(command, "envoy install ",
			"envoy install --file /opt/envoy/envoy ", 1)
		out := h.script("PATH=/opt/shims:$PATH; " + command)
		if ran++; strings.HasPrefix(command, "curl") {
			answers++
			if !strings.Contains(out, "HTTP/1.1 200 OK\r\n") {
				t.Errorf("%s answers\n%s", command, out)
			}
		}
	}
	if ran < 8 || answers != 1 {
		t.Errorf("%d commands, %d answers", ran, answers)
	}
	t.Logf("%d commands took %s", ran, time.Since(began).Round(time.Millisecond))
	h.script("systemctl stop outrider && rm /usr/lib/outrider/envoy && ! systemctl start outrider")
	const fix = `run "outrider envoy use `
	if said := h.property("outrider", "StatusText"); !strings.Contains(said, fix) {
		t.Errorf("with no Envoy selected: %s", said)
	}
	h.script("dpkg -P outrider")
	h.nothingRuns()
	h.expect("", "find /etc /usr /var /run /dev/shm -xdev -iname '*outrider*'")
}

// saysFirstSteps fails the test unless the output of an installation ends with the first steps.
func (h *host) saysFirstSteps(out string) {
	h.t.Helper()
	last := ""
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "  ") {
			last += strings.TrimSpace(line) + "\n"
		}
	}
	for _, want := range []string{"outrider envoy install ", "systemctl enable --now outrider\n"} {
		if !strings.Contains(last, want) {
			h.t.Errorf("no %q at the end of\n%s", want, out)
		}
	}
}
