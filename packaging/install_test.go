package packaging

import (
	"strings"
	"testing"
)

// Container images configure dpkg to omit documentation.
const installDeb = "DEBIAN_FRONTEND=noninteractive dpkg --path-include='/usr/share/*' " +
	"--force-confold -i "

// TestInstall installs, runs, upgrades, removes, reinstalls and purges first the deb and then the
// rpm, then the packages of outrider-discoveryd.
func TestInstall(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	sequence := []struct {
		name string
		do   func(h *host)
	}{
		{"deb/install", debInstall},
		{"deb/start and reload", startAndReload},
		{"deb/upgrade", func(h *host) {
			h.upgrade(func() {
				h.quiet(h.script(endOldLayout + installDeb + deb(newPlace, newVersion) + " 2>&1"))
			})
			// A modified configuration file remains.
			h.expect("# mine", "tail -n 1 /etc/outrider/outrider.toml")
			h.expect("640 root outrider", "stat -c '%a %U %G' /etc/outrider/outrider.toml")
		}},
		{"deb/remove", debRemove},
		{"deb/reinstall", func(h *host) {
			h.script(installDeb + deb(newPlace, newVersion))
			h.serves("outrider", "outrider@edge") // units that were enabled stay enabled
			h.script("systemctl stop outrider.slice")
		}},
		{"deb/purge", debPurge},
		{"rpm/install", rpmInstall},
		{"rpm/start and reload", startAndReload},
		{"rpm/upgrade", func(h *host) {
			h.upgrade(func() {
				h.quiet(h.script(endOldLayout + "rpm --force-debian -U --nodeps " +
					rpm(newPlace, newVersion) + " 2>&1"))
			})
		}},
		{"rpm/remove", rpmRemove},
		{"discoveryd/deb", discoverydDebRuns},
		{"discoveryd/upgrade", discoverydDebUpgrade},
		{"discoveryd/purge", discoverydDebPurge},
		{"discoveryd/rpm", discoverydRPMRuns},
	}
	for _, step := range sequence {
		if !t.Run(step.name, func(t *testing.T) { step.do(&host{Machine: h.Machine, t: t}) }) {
			return // later steps depend on this one
		}
	}
}

func debInstall(h *host) {
	out := h.script(installDeb + deb(oldPlace, oldVersion) + " 2>&1")
	if strings.Contains(strings.ToLower(out), "fail") || strings.Contains(strings.ToLower(out),
		"warning") {
		h.t.Errorf("dpkg says:\n%s", out)
	}
	h.saysFirstSteps(out)
	h.installedState()
	h.expect("", "dpkg --verify outrider")
	h.script("echo '# mine' >>/etc/outrider/outrider.toml")
}

// quiet fails the test if the output of an upgrade mentions a unit that does not run, or the first
// steps.
func (h *host) quiet(out string) {
	h.t.Helper()
	for _, noise := range []string{"cannot reload", "not active", "nothing runs yet"} {
		if strings.Contains(out, noise) {
			h.t.Errorf("an upgrade says:\n%s", out)
		}
	}
}

func startAndReload(h *host) {
	h.configure()
	h.script(oldLayout)
	h.script("systemctl enable --now outrider.service outrider@edge.service 2>&1")
	h.serves("outrider", "outrider@edge")
	h.script("systemctl reload outrider.service")
	h.serves("outrider", "outrider@edge")
	h.expect("0", `outrider --json status >/dev/null; echo $?`)
}

// captures makes the agent install capture rules, and the unit outrider-capture-early@ those of an
// instance. Removing the package must remove both.
func (h *host) captures() {
	h.t.Helper()
	h.script(`printf '[capture]\nmode = "redirect"\noutbound_cidrs = ["198.51.100.0/24"]\n' \
	>/etc/outrider/conf.d/60-capture.toml
systemctl restart outrider
for i in $(seq 300); do nft list table inet outrider >/dev/null 2>&1 && break; sleep 0.1; done
nft list table inet outrider >/dev/null
rm /etc/outrider/conf.d/60-capture.toml
printf '[capture]\nmode = "redirect"\nfail = "closed"\noutbound_cidrs = ["198.51.100.0/24"]\n' \
	>/etc/outrider/spare.toml
systemctl start outrider-capture-early@spare
nft list table inet outrider-closed_spare >/dev/null
rm /etc/outrider/spare.toml`)
}

func debRemove(h *host) {
	h.captures()
	h.script("dpkg -r outrider")
	h.nothingRuns()
	h.expect("", "nft list ruleset")
	h.expect("/etc/outrider/edge.toml\n/etc/outrider/outrider.toml", "ls /etc/outrider/*.toml")
	h.expect("700 outrider outrider", "stat -c '%a %U %G' /var/lib/outrider/outrider")
	h.expect("", "ls -d /usr/bin/outrider /usr/sbin/outriderd /usr/libexec/outrider 2>/dev/null "+
		"|| true")
}

func debPurge(h *host) {
	h.script("dpkg -P outrider")
	h.nothingRuns()
	h.expect("", "find /etc /usr /var /run /dev/shm -xdev -iname '*outrider*'")
	// The users remain.
	h.expect("outrider\noutrider-envoy", "getent passwd outrider outrider-envoy | cut -d : -f 1")
	h.script("userdel outrider; userdel outrider-envoy; groupdel -f outrider; groupdel -f " +
		"outrider-envoy; true")
}

// The rpm is installed in the machine's root directory, with a database of its own and without
// dependencies.
func rpmInstall(h *host) {
	h.saysFirstSteps(h.script("rpm --force-debian -i --nodeps " + rpm(oldPlace, oldVersion)))
	h.installedState()
	if out := h.script("rpm --force-debian -V --nodeps outrider || true"); out != "" {
		h.t.Errorf("rpm -V: %s", out)
	}
}

func rpmRemove(h *host) {
	h.captures()
	h.script("rpm --force-debian -e --nodeps outrider")
	h.nothingRuns()
	h.expect("", "nft list ruleset")
	h.expect("", "find /etc/systemd/system -name 'outrider*'")
	h.expect("", "ls -d /usr/bin/outrider /usr/sbin/outriderd /usr/libexec/outrider 2>/dev/null "+
		"|| true")
	// The state remains, as usual for an rpm.
	h.expect("700 outrider outrider", "stat -c '%a %U %G' /var/lib/outrider/outrider")
}
