package packaging

import (
	"strings"
	"testing"
)

// wrapped makes the installed command print the default addresses of earlier releases.
const wrapped = `mv /usr/bin/outrider /usr/bin/outrider.real
cat >/usr/bin/outrider <<'END'
#!/bin/sh
case "$*" in
"config defaults") exec sed 's/^address = "127.0.0.1:15020"/address = ":15020"/' /usr/share/old-defaults ;;
*) exec /usr/bin/outrider.real "$@" ;;
esac
END
chmod 0755 /usr/bin/outrider
/usr/bin/outrider.real config defaults >/usr/share/old-defaults
printf '[status]\naddress = ":15020"\n[telemetry]\nprometheus_address = "0.0.0.0:15090"\n' >/etc/outrider/conf.d/60-as-before.toml
systemctl start outrider outrider@edge`

// TestUpgrade_KeepsAddresses upgrades from a release that listened on all addresses by default. An
// agent that relies on the defaults continues to listen there; the instance that is configured to
// listen on loopback is unchanged.
func TestUpgrade_KeepsAddresses(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.script("dpkg -i " + deb(oldPlace, oldVersion))
	h.configure()
	h.script(wrapped)
	if out := h.script("dpkg -i " + deb(newPlace, newVersion)); !strings.Contains(out,
		"00-listen-addresses.toml") {
		t.Errorf("the upgrade does not say what it wrote:\n%s", out)
	}
	h.expect("640 root outrider",
		"stat -c '%a %U %G' /etc/outrider/conf.d/00-listen-addresses.toml")
	h.expect("", "ls /etc/outrider/edge.conf.d 2>/dev/null || true")
	h.serves("outrider", "outrider@edge")

	h.script("rm /etc/outrider/conf.d/60-as-before.toml && sed -i '/^\\[status\\]/,$d' " +
		"/etc/outrider/conf.d/50-test.toml && " +
		"systemctl restart outrider && outrider wait --timeout 60s")
	h.expect("*:15020\n0.0.0.0:15090",
		"ss -Hlnt 'sport = 15020 or sport = 15090' | awk '{print $4}' | sort")

	// A reinstallation writes no 00-listen-addresses.toml: the installed release already has the
	// new defaults.
	h.script("dpkg -i " + deb(newPlace, newVersion))
	h.script("rm /etc/outrider/conf.d/00-listen-addresses.toml && dpkg -i " + deb(newPlace,
		newVersion))
	h.expect("", "ls /etc/outrider/conf.d | grep 00- || true")
}

// TestUpgrade_MovesApplicationsToTheirGroup checks that an upgrade adds those users of applications
// that are in group outrider-envoy to group outrider-xds, and prints their names.
func TestUpgrade_MovesApplicationsToTheirGroup(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.script("dpkg -i " + deb(oldPlace, oldVersion) +
		" && useradd --system --groups outrider-envoy shop && gpasswd -a gone outrider-envoy; " +
		"sed -i '/^outrider-envoy:/s/$/,gone/' /etc/group")
	out := h.script("dpkg -i " + deb(newPlace, newVersion) + " 2>&1")
	if !strings.Contains(out, "user shop is in group outrider-envoy") ||
		strings.Contains(out, "user outrider") || strings.Contains(out, "user gone") {
		t.Errorf("the upgrade says:\n%s", out)
	}
	h.expect("outrider-xds", "id -nG shop | tr ' ' '\\n' | grep -x outrider-xds")
	h.expect("", "getent passwd gone || true")
	h.script("gpasswd -d shop outrider-envoy")
	if out := h.script("dpkg -i " + deb(newPlace, newVersion) + " 2>&1"); strings.Contains(out,
		"outrider-xds") {
		t.Errorf("the next upgrade says:\n%s", out)
	}
}

// TestUpgrade_RpmAsksFirst checks that the rpm's script has the same step as the deb's, which
// TestUpgrade_KeepsAddresses runs.
func TestUpgrade_RpmAsksFirst(t *testing.T) {
	scripts := run(t, "rpm", "-qp", "--scripts", rpm(shared.new(t), newVersion))
	before, _, _ := strings.Cut(scripts, "postinstall scriptlet")
	for _, want := range []string{"keep_addresses() {", "-eq 2 ]; then\n\tkeep_addresses || :"} {
		if !strings.Contains(before, want) {
			t.Errorf("%%pre has no %q:\n%s", want, before)
		}
	}
}
