package systemtest

import (
	"strings"
	"testing"
	"time"
)

// interception is a configuration that captures connections to the networks of the other host (see
// outside).
const interception = `
[capture]
mode = "redirect"
outbound_cidrs = ["198.51.100.0/24", "2001:db8::/32"]
`

// outside is a script that creates another host, a network namespace with the address 198.51.100.9.
// Its server on port 80 responds with "outside".
const outside = `set -eu
ip netns add far
ip link add near type veth peer name eth0 netns far
ip addr add 198.51.100.1/24 dev near
ip link set near up
ip -n far addr add 198.51.100.9/24 dev eth0
ip -n far link set eth0 up
ip -n far link set lo up
systemd-run --quiet --unit=far --property=NetworkNamespacePath=/run/netns/far \
	/opt/programs/backend -http 198.51.100.9:80 -tcp 198.51.100.9:81
`

func TestCapture(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.RunScript(outside)
	h.WriteText("/etc/outrider/conf.d/capture.toml", interception)
	const call = "curl -s -o /dev/null -m 2 -w '%{http_code}' http://198.51.100.9/"
	works := func(when string) {
		t.Helper()
		if got := h.RunScript(call + " || true"); got != "200" {
			t.Errorf("%s: %q", when, got)
		}
	}
	state := func(want string) {
		t.Helper()
		h.Eventually(time.Minute, "capture is "+want, func() bool {
			return strings.HasPrefix(h.RunScript("outrider capture show || true"), "capture is "+want)
		})
	}
	rules := func() bool {
		return strings.Contains(h.RunScript("nft list table inet outrider || true"), "redirect to")
	}
	h.Eventually(time.Minute, "the outside answers", func() bool {
		return h.RunScript(call+" || true") == "200"
	})
	h.RunScript("systemctl start outrider")
	state("on")
	works("captured")
	packets := h.RunScript(`outrider capture show | awk '$1 == "capture.outbound_cidrs" {print $2}'`)
	if strings.TrimSpace(packets) == "0" || packets == "" {
		t.Errorf("%q connections were captured:\n%s", packets, h.RunScript("outrider capture show"))
	}
	if got := h.RunScript("outrider capture explain 198.51.100.9:80"); !strings.HasPrefix(got,
		"captured: goes to Envoy's port 15001 (capture.outbound_cidrs)") {
		t.Errorf("explained as %s", got)
	}
	if got := h.RunScript("busctl get-property org.outrider.Agent1 /org/outrider/Agent1 " +
		"org.outrider.Agent1.Manager Capture"); strings.TrimSpace(got) != `s "on"` {
		t.Errorf("the property is %s", got)
	}

	t.Run("rules outlive agent and firewall reloads", func(t *testing.T) {
		for _, disturbance := range []string{"nft flush ruleset", "systemctl restart outrider",
			"outrider reload", "systemctl kill -s KILL outrider.service",
			"systemctl reload outrider-capture.service"} {
			h.RunScript(disturbance)
			if !rules() {
				t.Errorf("%s: the rules are gone", disturbance)
			}
			works(disturbance)
		}
		state("on")
	})
	t.Run("connections over the limit are closed", func(t *testing.T) {
		h.WriteText("/etc/outrider/conf.d/limit.toml",
			"[capture]\nmax_connections = 2\ninbound_ports = [9101]\n")
		// `outrider reload` returns when the epoch with max_connections is live.
		h.RunScript("systemd-run --quiet --unit=near /opt/programs/backend -tcp 198.51.100.1:9101; " +
			"systemctl restart outrider && outrider reload")
		state("on")
		served := func(host, address string) string {
			return strings.TrimSpace(h.RunScript(host + ` bash <<'END'
for i in 1 2 3 4 5 6; do
	exec {fd}<>/dev/tcp/` + address + `
	echo x >&$fd && read -t 5 -u $fd && served=$((served + 1))
done 2>/dev/null
echo $served
END
`))
		}
		if n := served("ip netns exec far", "198.51.100.1/9101"); n != "2" {
			t.Errorf("inbound, %s of 6 connections are served", n)
		}
		// A connection of outrider-capture, and earlier connections that Envoy has not closed yet,
		// count towards the limit, too.
		h.Eventually(time.Minute, "3 or 4 of 6 outbound connections are served", func() bool {
			n := served("", "198.51.100.9/81")
			if n == "5" || n == "6" {
				t.Errorf("outbound, %s of 6 connections are served", n)
			}
			return n == "4" || n == "3"
		})
		h.RunScript("systemctl stop near; rm /etc/outrider/conf.d/limit.toml; systemctl restart outrider")
		state("on")
		works("without the limit")
	})
	t.Run("a killed helper comes back", func(t *testing.T) {
		for range 5 {
			t.Logf("rules back %v after the kill", h.killHelper(func() { works("killed") }))
		}
		works("back")
		state("on")
	})
	t.Run("a helper that hangs is replaced", func(t *testing.T) {
		const pid = "systemctl show -P MainPID outrider-capture.service"
		was := h.RunScript(pid)
		h.RunScript("systemctl kill -s STOP outrider-capture.service")
		h.Eventually(time.Minute, "another helper has the rules", func() bool {
			now := strings.TrimSpace(h.RunScript(pid))
			return now != strings.TrimSpace(was) && now != "0" && rules()
		})
		state("on")
		works("replaced")
	})
	t.Run("Envoy that is gone cuts nothing off", func(t *testing.T) {
		h.RunScript("systemctl kill -s STOP outrider.service; systemctl kill -s KILL outrider-envoy.service")
		began := time.Now()
		h.Eventually(time.Minute, "the outside answers", func() bool {
			return h.RunScript(call+" || true") == "200"
		})
		t.Logf("direct %v after the kill", time.Since(began))
		h.RunScript("systemctl kill -s CONT outrider.service")
		state("on")
		works("again")
	})
	t.Run("all processes killed", func(t *testing.T) {
		h.RunScript("systemctl kill -s KILL outrider.service outrider-envoy.service " +
			"outrider-capture.service")
		began := time.Now()
		h.Eventually(time.Minute, "the outside answers", func() bool {
			return h.RunScript(call+" || true") == "200"
		})
		t.Logf("direct %v after the kill", time.Since(began))
		state("on")
		works("again")
	})
	t.Run("stop leaves nothing", func(t *testing.T) {
		h.RunScript("systemctl stop outrider")
		if left := h.RunScript("nft list ruleset"); left != "" {
			t.Errorf("left: %s", left)
		}
		works("stopped")
		if got := h.RunScript("systemctl is-active outrider-capture.service || true"); got == "active" {
			t.Error("outrider-capture still runs")
		}
	})
	t.Run("a broken configuration captures nothing", func(t *testing.T) {
		h.WriteText("/etc/outrider/conf.d/broken.toml", "[capture\n")
		h.RunScript("if systemctl start outrider; then exit 1; fi; systemctl stop outrider; " +
			"rm /etc/outrider/conf.d/broken.toml; systemctl reset-failed outrider")
		if left := h.RunScript("nft list ruleset"); left != "" {
			t.Errorf("left: %s", left)
		}
		works("not started")
	})
	t.Run("closed", func(t *testing.T) {
		h.WriteText("/etc/outrider/conf.d/closed.toml", "[capture]\nfail = \"closed\"\n")
		h.RunScript("systemctl start outrider")
		state("on")
		works("closed, while Envoy serves")
		h.RunScript("systemctl kill -s STOP outrider.service; systemctl kill -s KILL outrider-envoy.service")
		h.Eventually(time.Minute, "connections are refused", func() bool {
			// curl's exit code for a refused connection
			return strings.Contains(h.RunScript(call+" || echo exit $?"), "exit 7")
		})
		h.RunScript("systemctl kill -s CONT outrider.service")
		h.Eventually(time.Minute, "the outside answers again", func() bool {
			return h.RunScript(call+" || true") == "200"
		})
		state("on")
		h.WriteText("/etc/outrider/conf.d/broken.toml", "[capture\n")
		h.RunScript("! systemctl restart outrider")
		works("closed, after a restart that failed")
		if log := h.Journal("-u", "outrider.service"); !strings.Contains(log,
			`"outrider cleanup --stop" ends this`) {
			t.Errorf("the journal does not say how to lift it:\n%s", log)
		}
		h.RunScript("rm /etc/outrider/conf.d/broken.toml; outrider cleanup --stop")
		works("stopped")
		if left := h.RunScript("nft list ruleset"); left != "" {
			t.Errorf("left: %s", left)
		}
	})
	t.Run("a first start is a trial", func(t *testing.T) {
		h.WriteText("/etc/outrider/conf.d/closed.toml", "[capture]\ntrial = \"5s\"\n")
		h.RunScript("systemctl start outrider")
		state("trial until ")
		state("withdrawn: the trial ended")
		h.RunScript("systemctl restart outrider")
		state("withdrawn: the trial ended")
		works("after the trial")
		h.RunScript("systemctl stop outrider; systemctl start outrider")
		state("trial until ")
		h.RunScript("outrider capture confirm")
		state("on")
		h.RunScript("systemctl stop outrider")
	})
	t.Run("units", func(t *testing.T) {
		h.RunScript("rm /etc/outrider/conf.d/closed.toml")
		h.WriteText("/etc/outrider/conf.d/units.toml", "[capture]\nunits = [\"client.service\"]\n")
		h.RunScript("systemctl start outrider")
		state("on")
		captured := func() string {
			return strings.TrimSpace(h.RunScript(
				`outrider capture show | awk '$1 == "capture.units" {print $2}'`))
		}
		works("another unit")
		if got := captured(); got != "" && got != "0" {
			t.Errorf("%s connections of other units were captured", got)
		}
		h.RunScript("systemd-run --quiet --wait --unit=client sh -c 'sleep 0.1; " +
			"curl -sf -o /dev/null http://198.51.100.9/; outrider capture show >/tmp/shown'")
		if got := strings.TrimSpace(h.RunScript(
			`awk '$1 == "capture.units" {n += $2} END {print n}' /tmp/shown`)); got != "1" {
			t.Errorf("%s connections of the unit were captured: %s", got, h.RunScript("cat /tmp/shown"))
		}
		if got := h.RunScript("outrider capture explain 198.51.100.9:80 --unit client.service"); !strings.
			HasPrefix(got, "captured: goes to Envoy's port 15001 (capture.units)") {
			t.Errorf("explained as %s", got)
		}
	})
	t.Run("tproxy keeps the client's address", func(t *testing.T) {
		h.RunScript("systemctl stop outrider outrider-envoy.service; rm /etc/outrider/conf.d/units.toml")
		h.WriteText("/etc/outrider/conf.d/tproxy.toml", "[capture]\nmode = \"tproxy\"\n"+
			"inbound_ports = [9100]\n")
		h.RunScript(`install -D -m 0644 /opt/packaging/systemd/tproxy.conf \
	/etc/systemd/system/outrider-envoy.service.d/tproxy.conf
systemctl daemon-reload
systemctl start outrider
systemd-run --quiet --unit=here /opt/programs/backend -http 127.0.0.1:9101 -tcp 198.51.100.1:9100`)
		state("on")
		works("outbound with tproxy")
		h.RunScript(`systemd-run --quiet --unit=caller --property=NetworkNamespacePath=/run/netns/far \
	bash -c 'exec 3<>/dev/tcp/198.51.100.1/9100; echo hello >&3; read -r answer <&3; sleep 600'`)
		h.Eventually(time.Minute, "the application sees the client's address", func() bool {
			peers := h.RunScript("ss -Htnp state established 'sport = :9100'")
			// connections of Envoy and of the application, both with the client's address
			return strings.Count(peers, " 198.51.100.9:") == 2 &&
				strings.Contains(peers, `"envoy"`) && strings.Contains(peers, `"backend"`)
		})
		h.RunScript("systemctl stop caller outrider")
		if left := h.RunScript("nft list ruleset; ip rule show fwmark 1337; ip route show table all |" +
			" grep 133 || true"); left != "" {
			t.Errorf("left: %s", left)
		}
		works("stopped")
	})
}
