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

// TestFirstRequest_WithThePackageAlone runs the commands of README.Debian on a machine without
// Envoy, up to the first answer. Purging then leaves nothing.
func TestFirstRequest_WithThePackageAlone(t *testing.T) {
	t.Parallel()
	h := &host{t: t, Machine: machine.Test(t, machine.Options{Bind: []string{
		shared.old(t) + ":" + oldPlace, filepath.Dir(parts.Envoy(t)) + ":/opt/envoy"}})}
	h.script("rm -f /usr/sbin/policy-rc.d /usr/local/bin/envoy /usr/bin/envoy")
	h.script(installDeb + deb(oldPlace, oldVersion))
	h.script("systemd-run --quiet --unit=application python3 -m http.server --bind 127.0.0.1 3000")
	h.script("systemd-run --quiet --unit=canary python3 -m http.server --bind 127.0.0.1 3001")
	readme, err := os.ReadFile("README.Debian")
	if err != nil {
		t.Fatal(err)
	}
	commands, _, _ := strings.Cut(string(readme), "What there is to read:")
	began, ran, last := time.Now(), 0, ""
	for line := range strings.Lines(commands) {
		command, found := strings.CutPrefix(line, "    ")
		if !found {
			continue
		}
		// The machine has no network.
		command = strings.Replace(command, "envoy install ",
			"envoy install --file /opt/envoy/envoy ", 1)
		if strings.HasPrefix(command, "curl") {
			for _, port := range []string{"3000", "3001"} {
				h.eventually("200", "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:"+port+
					"/ || true")
			}
		}
		last = h.script(command)
		ran++
	}
	if ran < 7 || !strings.Contains(last, "HTTP/1.1 200 OK") {
		t.Errorf("after %d commands the answer is:\n%s", ran, last)
	}
	t.Logf("%d commands took %s", ran, time.Since(began).Round(time.Millisecond))
	h.script("dpkg -P outrider")
	h.nothingRuns()
	h.expect("", "find /etc /usr /var /run /dev/shm -xdev -iname '*outrider*'")
}
