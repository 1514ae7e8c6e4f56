package packaging

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

func discoverydDeb(folder, version string) string {
	return filepath.Join(folder, "outrider-discoveryd_"+version+"-1_amd64.deb")
}

func discoverydRPM(folder, version string) string {
	return filepath.Join(folder, "outrider-discoveryd-"+version+"-1.x86_64.rpm")
}

// discoverydInstalled maps paths of the package outrider-discoveryd to modes and owners; "": 0644
// root:root.
var discoverydInstalled = map[string]string{
	"/etc/outrider":                           "drwxr-xr-x root root",
	"/etc/outrider/discoveryd.d":              "drwxr-xr-x root root",
	"/etc/outrider/mesh.d":                    "drwxr-xr-x root root",
	"/etc/outrider/discoveryd.toml":           "-rw-r----- root outrider-discoveryd",
	"/usr/sbin/outrider-discoveryd":           "-rwxr-xr-x root root",
	"/usr/share/doc/outrider-discoveryd":      "drwxr-xr-x root root",
	"/usr/share/licenses/outrider-discoveryd": "drwxr-xr-x root root",
	"/usr/share/outrider":                     "drwxr-xr-x root root",
	"/usr/share/outrider/grafana":             "drwxr-xr-x root root",
	"/usr/share/outrider/prometheus":          "drwxr-xr-x root root",

	"/usr/share/outrider/grafana/outrider-discoveryd.json":         "",
	"/usr/share/outrider/prometheus/outrider-discoveryd.rules.yml": "",
	"/usr/share/outrider/prometheus/prometheus-discoveryd.yml":     "",

	"/usr/share/man/man5/discoveryd.toml.5.gz":                     "",
	"/usr/share/man/man8/outrider-discoveryd.8.gz":                 "",
	"/usr/share/doc/outrider-discoveryd/NOTICES.gz":                "",
	"/usr/share/doc/outrider-discoveryd/changelog.gz":              "",
	"/usr/share/doc/outrider-discoveryd/discoveryd.toml":           "",
	"/usr/share/doc/outrider-discoveryd/kubernetes-rbac.yaml":      "",
	"/usr/share/licenses/outrider-discoveryd/LICENSE":              "",
	"/usr/lib/systemd/system/outrider-discoveryd.service":          "",
	"/usr/lib/systemd/system-preset/90-outrider-discoveryd.preset": "",
	"/usr/lib/sysusers.d/outrider-discoveryd.conf":                 "",
}

// The package outrider-discoveryd does not depend on the agent's package, which contains none of
// its files.
func TestContents_Discoveryd(t *testing.T) {
	folder := shared.old(t)
	path := discoverydRPM(folder, oldVersion)
	for line := range strings.Lines(run(t, "rpm", "-qp", "--qf",
		"[%{FILEMODES:perms} %{FILEUSERNAME} %{FILEGROUPNAME} %{FILENAMES}\n]", path)) {
		owner, name, _ := strings.Cut(strings.TrimSpace(line), " /")
		want, known := discoverydInstalled["/"+name]
		if want = cmp.Or(want, "-rw-r--r-- root root"); owner != want || !known {
			t.Errorf("/%s is %q, want %q", name, owner, want)
		}
	}
	if got := run(t, "rpm", "-qp", "-c", path); got != "/etc/outrider/discoveryd.toml" {
		t.Errorf("configuration: %s", got)
	}
	listed := run(t, "dpkg-deb", "-c", discoverydDeb(folder, oldVersion))
	for name := range discoverydInstalled {
		if !strings.Contains(listed, " ."+name) && !strings.Contains(name, "/licenses/") {
			t.Errorf("%s is missing in the deb", name)
		}
	}
	if !strings.Contains(listed, " ./usr/share/apparmor/extra-profiles/outrider-discoveryd") {
		t.Error("the profile of AppArmor is missing")
	}
	for _, one := range []string{run(t, "rpm", "-qp", "--requires", path),
		run(t, "dpkg-deb", "-f", discoverydDeb(folder, oldVersion), "Depends")} {
		if strings.Contains(one, "outrider") {
			t.Errorf("it depends on %s", one)
		}
	}
	run(t, "lintian", "--allow-root", "--fail-on", "error,warning",
		discoverydDeb(folder, oldVersion))
	agent := run(t, "dpkg-deb", "-c", deb(folder, oldVersion)) +
		run(t, "rpm", "-qlp", rpm(folder, oldVersion))
	if strings.Contains(agent, "discoveryd") {
		t.Errorf("the agent's package has files of discoveryd:\n%s", agent)
	}
}

// monitored requests a path of [listen] monitoring.
const monitored = `exec 3<>/dev/tcp/127.0.0.1/15014
printf 'GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3; tr -d '\r' <&3 | `

// isReady fails the test unless the server is ready and knows that the request comes from a user of
// this host.
func (h *host) isReady() {
	h.t.Helper()
	for _, path := range []string{"/ready", "/debug/"} {
		if got := h.MustRun(h.t, "bash", "-c",
			fmt.Sprintf(monitored, path)+"head -n 1"); got != "HTTP/1.0 200 OK" {
			h.t.Errorf("%s answers %q", path, got)
		}
	}
}

// hasClient waits until an agent is connected.
func (h *host) hasClient() {
	h.t.Helper()
	parts.Eventually(h.t, time.Minute, "an agent is connected", func() bool {
		return h.MustRun(h.t, "bash", "-c",
			fmt.Sprintf(monitored, "/metrics")+"sed -n 's/^pilot_xds //p'") == "1"
	})
}

// discoverydDebRuns installs the deb of outrider-discoveryd without the agent's deb, starts
// outrider-discoveryd and reloads it.
func discoverydDebRuns(h *host) {
	h.script("rm -rf /etc/outrider /var/lib/outrider")
	out := h.script(installDeb + discoverydDeb(oldPlace, oldVersion) + " 2>&1")
	if lower := strings.ToLower(out); strings.Contains(lower, "fail") ||
		strings.Contains(lower, "warning") {
		h.t.Errorf("dpkg says:\n%s", out)
	}
	h.expect("", "dpkg --verify outrider-discoveryd")
	h.discoverydStarts()
	h.script("systemctl reload outrider-discoveryd")
	h.discoverydIs("active")
	h.isReady()
	h.script("echo unknown=1 >/etc/outrider/discoveryd.d/x.toml")
	h.expect("refused", "systemctl reload outrider-discoveryd 2>/dev/null || echo refused")
	h.script("rm /etc/outrider/discoveryd.d/x.toml && systemctl reload outrider-discoveryd")
	h.isReady()
	if out := h.script("journalctl -u outrider-discoveryd -o cat"); strings.Count(out,
		"Reloaded") != 2 {
		h.t.Errorf("the journal:\n%s", out)
	}
}

// discoverydStarts checks the installed files, and that the unit starts, is ready and is hardened.
func (h *host) discoverydStarts() {
	h.t.Helper()
	h.expect("disabled", "systemctl is-enabled outrider-discoveryd || true")
	h.expect("inactive", "systemctl is-active outrider-discoveryd || true")
	h.expect("640 root outrider-discoveryd", "stat -c '%a %U %G' /etc/outrider/discoveryd.toml")
	h.script("systemctl enable --now outrider-discoveryd 2>&1")
	h.isReady()
	h.expect("700 outrider-discoveryd outrider-discoveryd",
		"stat -c '%a %U %G' /var/lib/outrider-discoveryd")
	out := h.script("systemd-analyze security --no-pager outrider-discoveryd.service")
	match := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`).FindStringSubmatch(out)
	if match == nil {
		h.t.Fatal(out)
	}
	if level, err := strconv.ParseFloat(match[1], 64); err != nil || level > 1.5 {
		h.t.Errorf("exposed at %s:\n%s", match[1], out)
	}
}

func (h *host) discoverydIs(state string) {
	h.t.Helper()
	parts.Eventually(h.t, time.Minute, "outrider-discoveryd is "+state, func() bool {
		return h.property("outrider-discoveryd.service", "ActiveState") == state
	})
}

// discoverydDebUpgrade upgrades the server while an agent is connected, whose Envoy loses no
// request. Then it checks that purging the agent's package does not affect the server.
func discoverydDebUpgrade(h *host) {
	h.script(installDeb + deb(newPlace, newVersion))
	h.configure()
	h.script(`printf '[discovery]\naddress = "127.0.0.1:15010"\n' >/etc/outrider/conf.d/60-fleet.toml
systemctl start outrider.service`)
	h.serves("outrider")
	h.hasClient()
	before := h.property("outrider-discoveryd.service", "MainPID")
	h.script("echo '# mine' >>/etc/outrider/discoveryd.toml")
	h.whileServing("outrider", func() {
		h.script(installDeb + discoverydDeb(newPlace, newVersion) + " 2>&1")
		h.hasClient()
	})
	if h.property("outrider-discoveryd.service", "MainPID") == before {
		h.t.Error("the old version runs")
	}
	h.expect("# mine", "tail -n 1 /etc/outrider/discoveryd.toml")
	h.expect("640 root outrider-discoveryd", "stat -c '%a %U %G' /etc/outrider/discoveryd.toml")
	h.expect("outrider-discoveryd "+newVersion, "outrider-discoveryd --version")
	discoverydHangs(h)
	h.script("dpkg -P outrider 2>&1")
	h.expect("discoveryd.d\ndiscoveryd.toml\nmesh.d\nmesh.d/web.yaml",
		"cd /etc/outrider && find * | sort")
	h.discoverydIs("active")
}

// discoverydHangs stops the server's threads: systemd's watchdog kills it and starts it again, and
// the agent connects to it again. The agent's Envoy loses no request.
func discoverydHangs(h *host) {
	h.t.Helper()
	h.script(`mkdir -p /run/systemd/system/outrider-discoveryd.service.d
printf '[Service]\nWatchdogSec=8s\n' >/run/systemd/system/outrider-discoveryd.service.d/test.conf
systemctl daemon-reload && systemctl restart outrider-discoveryd`)
	h.hasClient()
	before := h.property("outrider-discoveryd.service", "MainPID")
	h.whileServing("outrider", func() {
		h.script("kill -STOP " + before)
		parts.Eventually(h.t, time.Minute, "the watchdog has replaced the server", func() bool {
			now := h.property("outrider-discoveryd.service", "MainPID")
			return now != before && now != "0"
		})
		h.hasClient()
	})
	if log := h.script("journalctl -u outrider-discoveryd -o cat"); !strings.Contains(log,
		"Watchdog timeout") {
		h.t.Errorf("the watchdog did not end the server:\n%s", log)
	}
	h.script(`rm -r /run/systemd/system/outrider-discoveryd.service.d && systemctl daemon-reload`)
}

// discoverydDebPurge removes and purges the package: only the user remains.
func discoverydDebPurge(h *host) {
	h.script("dpkg -r outrider-discoveryd")
	h.discoverydIs("inactive")
	h.expect("", "ls -d /usr/sbin/outrider-discoveryd 2>/dev/null || true")
	h.script("rm -r /etc/outrider/mesh.d/*; dpkg -P outrider-discoveryd")
	h.expect("", "find /etc /usr /var /run -xdev -iname '*outrider*'")
	h.script("userdel outrider-discoveryd")
}

func discoverydRPMRuns(h *host) {
	h.script("rpm --force-debian -i --nodeps " + discoverydRPM(oldPlace, oldVersion))
	h.discoverydStarts()
	h.script("rpm --force-debian -U --nodeps " + discoverydRPM(newPlace, newVersion))
	h.discoverydIs("active")
	h.expect("outrider-discoveryd "+newVersion, "outrider-discoveryd --version")
	h.script("rpm --force-debian -e --nodeps outrider-discoveryd")
	h.discoverydIs("inactive")
	// The state remains, as usual for an rpm.
	h.expect("/var/lib/outrider-discoveryd",
		"find /etc /usr /var /run -xdev -iname '*outrider*' ! -path '/var/lib/outrider-discoveryd/*'")
}
