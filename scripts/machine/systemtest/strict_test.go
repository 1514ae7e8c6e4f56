package systemtest

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
)

// asks is a script that creates the other host (see outside), starts an application on port 9100 of
// the machine, and installs two commands. plain calls the application from the other host in plain
// text, to an IPv4, an IPv6 and a link-local address, and prints the status codes. ask repeats
// that, and appends a line to /run/asked after each round, and to /run/plain after each round in
// which the application answered.
const asks = outside + `
ip addr add 2001:db8:9::1/64 dev near nodad
ip -n far addr add 2001:db8:9::9/64 dev eth0 nodad
until ip -6 addr show dev near scope link | grep -q 'inet6 fe80.*scope link *$'; do sleep 0.1; done
until ! ip -n far -6 addr show dev eth0 | grep -q tentative; do sleep 0.1; done
link=$(ip -6 addr show dev near scope link | sed -n 's/.*inet6 \([^/]*\).*/\1/p')
cat >/usr/local/bin/plain <<END
#!/bin/sh
for address in 198.51.100.1 '[2001:db8:9::1]' '[$link%25eth0]'; do
	ip netns exec far curl -s -m 1 -o /dev/null -w '%{http_code} ' "http://\$address:9100/"
done
END
cat >/usr/local/bin/ask <<'END'
#!/bin/sh
while :; do
	answers=$(plain)
	case "$answers" in *200*) date +"%s%6N $answers" >>/run/plain ;; esac
	echo >>/run/asked
done
END
touch /run/asked
chmod +x /usr/local/bin/plain /usr/local/bin/ask
systemd-run --quiet --unit=shop --property=Restart=always /opt/programs/backend -http '[::]:9100' -tcp '[::]:9101'
`

// strict is a host with a certificate, whose mesh requires mutual TLS (mode STRICT), with the
// default settings of the capture.
type strict struct{ *Host }

func newStrict(t *testing.T) strict {
	t.Helper()
	h := strict{NewHost(t)}
	root := pkitest.NewAuthority(t, "root", nil)
	for _, name := range []string{"web", "client"} {
		chain, key := root.Issue(t, pkitest.LeafTemplate(name, 24*time.Hour))
		h.WriteText("/etc/outrider/"+name+".crt", string(chain))
		h.WriteText("/etc/outrider/"+name+".key", string(key))
	}
	h.WriteText("/etc/outrider/root.crt", string(pkitest.PEM(root.Certificate)))
	h.RunScript("chown outrider /etc/outrider/web.key; chmod 400 /etc/outrider/web.key")
	h.WriteText("/etc/outrider/conf.d/60-strict.toml", `[identity]
provider = "files"
cert_file = "/etc/outrider/web.crt"
key_file = "/etc/outrider/web.key"
root_ca_file = "/etc/outrider/root.crt"
[capture]
mode = "redirect"
`)
	h.WriteText("/etc/outrider/mesh.d/peers.yaml", `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
`)
	h.RunScript(asks)
	h.plain("200 200 200")
	return h
}

// plain waits until plain-text calls of the other host to the three addresses are answered with
// these status codes, 000 for no answer.
func (h strict) plain(want string) {
	h.t.Helper()
	got := ""
	h.Eventually(time.Minute, "plain text is answered with "+want, func() bool {
		got = strings.TrimSpace(h.RunScript("plain || true"))
		return got == want
	})
}

// closed waits for several rounds of ask and checks that the application has answered no plain-text
// call since the previous use of closed. during describes the time between them.
func (h strict) closed(during string) {
	h.t.Helper()
	asked := func() int {
		n, err := strconv.Atoi(strings.TrimSpace(h.RunScript("wc -l </run/asked")))
		if err != nil {
			h.t.Fatal(err)
		}
		return n
	}
	before := asked()
	h.Eventually(time.Minute, "the other host asks", func() bool { return asked() > before+2 })
	if answers := h.RunScript("cat /run/plain 2>/dev/null; rm -f /run/plain"); answers != "" {
		h.t.Errorf("%s: the application answered in plain text:\n%s", during, answers)
	}
}

// mutual waits until the application answers calls of the other host with mutual TLS.
func (h strict) mutual() {
	h.t.Helper()
	for _, address := range []string{"198.51.100.1", "[2001:db8:9::1]"} {
		h.Eventually(time.Minute, "mutual TLS to "+address+" is answered", func() bool {
			return h.RunScript("ip netns exec far curl -s -k -m 2 -o /dev/null -w '%{http_code}' "+
				"--cert /etc/outrider/client.crt --key /etc/outrider/client.key https://"+address+
				":9100/ || true") == "200"
		})
	}
}

func (h strict) status(want string) {
	h.t.Helper()
	h.Eventually(time.Minute, "the status has "+want, func() bool {
		return strings.Contains(strings.Join(strings.Fields(h.RunScript("outrider status || true")), " "),
			want)
	})
}

// TestStrict_NeverPlainText checks that the application answers no plain-text call while Envoy, the
// agent and outrider-capture are killed, restarted, reloaded and drained, until an administrator
// stops the agent or runs `outrider cleanup --stop`.
func TestStrict_NeverPlainText(t *testing.T) {
	t.Parallel()
	h := newStrict(t)
	h.RunScript("systemctl start outrider")
	h.captureIs("on")
	h.plain("000 000 000")
	h.mutual()
	h.status("outrider running, ready")
	h.RunScript("systemctl reload outrider-capture; systemctl restart outrider") // as an upgrade does
	h.captureIs("on")
	h.status("outrider running, ready")
	log := h.Journal("-u", "outrider.service")
	for _, alarm := range []string{"mutual-tls-bypassed", "capture-unavailable"} {
		if strings.Contains(log, alarm) {
			t.Errorf("%s is raised:\n%s", alarm, log)
		}
	}
	const ask = "systemd-run --quiet --unit=ask /usr/local/bin/ask"
	h.RunScript(ask)
	h.closed("Envoy serves")

	h.RunScript("systemctl kill -s STOP outrider.service; systemctl kill -s KILL outrider-envoy.service")
	h.closed("Envoy and the keeper are dead")
	h.RunScript("systemctl kill -s CONT outrider.service")
	h.captureIs("on")
	h.mutual()
	h.RunScript("systemctl kill -s KILL outrider.service")
	h.closed("the agent was killed")
	h.captureIs("on")
	h.RunScript("systemctl kill -s KILL outrider-capture.service")
	h.closed("outrider-capture was killed")
	h.RunScript("systemctl kill -s KILL outrider.service outrider-envoy.service outrider-capture.service")
	h.closed("everything was killed")
	h.captureIs("on")
	h.mutual()
	h.RunScript("systemctl restart outrider; outrider reload")
	h.closed("restart and reload")
	h.RunScript("outrider drain --wait")
	h.closed("both halves of a drain")
	h.captureIs("closed")
	if got := h.RunScript("busctl get-property org.outrider.Agent1 /org/outrider/Agent1 " +
		"org.outrider.Agent1.Manager Capture"); strings.TrimSpace(got) != `s "closed"` {
		t.Errorf("the property is %s", got)
	}
	h.RunScript("outrider undrain")
	h.captureIs("on")
	h.mutual()

	// The agent has given up (exit code 75). The ports are open only after a command of an
	// administrator.
	h.WriteText("/etc/outrider/conf.d/70-limit.toml", "[envoy]\nrestart_limit = 1\n")
	h.RunScript("outrider reload")
	h.Eventually(time.Minute, "the agent gives up", func() bool {
		return strings.TrimSpace(h.RunScript("pkill -KILL -x envoy; systemctl show -P ExecMainStatus "+
			"outrider.service")) == "75"
	})
	h.closed("exit code 75")
	h.RunScript("systemctl stop ask; outrider cleanup --stop")
	h.plain("200 200 200")
	const open = "inbound connections go direct, past Envoy: ports"
	if log = h.Journal("-u", "outrider-capture.service"); !strings.Contains(log, open) ||
		!strings.Contains(log, "9100") {
		t.Errorf("the journal does not name the open ports:\n%s", log)
	}

	h.RunScript("systemctl reset-failed outrider; systemctl start outrider")
	h.captureIs("on")
	h.RunScript(ask)
	h.closed("started again")
	h.RunScript("systemctl stop outrider")
	h.plain("200 200 200")
	h.RunScript("systemctl stop ask")
	opened := h.RunScript("journalctl --sync; journalctl -q -u outrider-capture.service -o json -n 1 " +
		"--grep '" + open + "' | sed 's/.*__REALTIME_TIMESTAMP\" *: *\"\\([0-9]*\\).*/\\1/'")
	if len(strings.TrimSpace(opened)) < 16 {
		t.Errorf("the time of the line about open ports is %q", opened)
	}
	for line := range strings.Lines(h.RunScript("cat /run/plain 2>/dev/null || true")) {
		if line < opened { // both are times in microseconds
			t.Errorf("open at %s, but the application answered in a round that ended at %s", opened,
				line)
		}
	}
}

// TestStrict_IsNeverSilent checks that the status, and in most cases mesh check, report each
// configuration that leaves an application open to plain text. Unless the configuration excludes
// the port explicitly, the agent is not ready.
func TestStrict_IsNeverSilent(t *testing.T) {
	t.Parallel()
	h := newStrict(t)
	// opens writes keys of [capture], starts the agent and checks that the status and mesh check
	// name the port, and that the agent is not ready.
	opens := func(capture, why string) {
		t.Helper()
		h.WriteText("/etc/outrider/conf.d/70-open.toml", "[capture]\n"+capture)
		h.RunScript("systemctl start --no-block outrider")
		h.status("not ready")
		h.status("mutual-tls-bypassed")
		h.plain("200 200 200")
		h.status("other hosts reach port 9100 ([::]:9100) over IPv4 and IPv6 without the mutual TLS " +
			"that PeerAuthentication istio-system/default")
		h.status(why)
		out, err := h.Run(t.Context(), "outrider", "mesh", "check")
		if err == nil || !strings.Contains(out, "other hosts reach port 9100") {
			t.Errorf("%s: mesh check: %v\n%s", capture, err, out)
		}
		if out, err := h.Run(t.Context(), "outrider", "wait", "--timeout", "1s"); err == nil {
			t.Errorf("%s: ready: %s", capture, out)
		}
		h.RunScript("systemctl stop outrider")
	}
	h.WriteText("/etc/outrider/conf.d/70-open.toml", "[capture]\nexclude_inbound_ports = [22, "+
		"9100, 9101]\n")
	h.RunScript("systemctl start outrider")
	h.captureIs("on")
	h.plain("200 200 200")
	h.status("ready")
	h.status("outside mutual TLS port")
	h.status("port 9100 (capture.exclude_inbound_ports)")
	h.RunScript("systemctl stop outrider")

	// With this endpoint the port is one of the workload's service ports.
	h.WriteText("/etc/outrider/conf.d/65-ip.toml", "[node]\nip = \"198.51.100.1\"\n")
	h.WriteText("/etc/outrider/mesh.d/shop.yaml", `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: default}
spec:
  hosts: [shop.test]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9100, name: http, protocol: HTTP}]
  endpoints: [{address: 198.51.100.1}]
`)
	opens("inbound_ports = []\n", "inbound_ports does not contain it")
	opens("mode = \"none\"\n", "mode is \"none\"")
	h.RunScript("systemctl mask --runtime --now outrider-capture.socket outrider-capture.service")
	opens("", "outrider-capture does not answer")
	h.RunScript("systemctl unmask --runtime outrider-capture.socket outrider-capture.service; " +
		"systemctl start outrider-capture.socket")
	h.RunScript("systemd-run --quiet --unit=caller --property=NetworkNamespacePath=/run/netns/far " +
		"bash -c 'exec 3<>/dev/tcp/198.51.100.1/9101; sleep 600'")
	h.Eventually(time.Minute, "a connection is older than the rules", func() bool {
		return h.RunScript("ss -Htn state established 'sport = :9101'") != ""
	})
	h.WriteText("/etc/outrider/conf.d/70-open.toml", "")
	h.RunScript("systemctl start outrider")
	h.captureIs("on")
	h.status("past mutual TLS port 9101: 1 connection from 198.51.100.9")
	h.RunScript("systemctl stop outrider")

	// One path of the mesh configuration does not exist, as if its file system were not mounted
	// yet.
	h.WriteText("/etc/outrider/conf.d/70-open.toml",
		"[discovery]\nfiles = [\"/etc/outrider/mesh.d\", \"/srv/mesh\"]\n")
	h.RunScript("systemctl start --no-block outrider")
	h.status("/srv/mesh:1: does not exist")
	h.status("not ready")
	h.captureIs("closed")
	h.plain("000 000 000")
	// A reload reports the path, and the ports stay closed.
	h.RunScript("outrider reload 2>&1 | grep -F '/srv/mesh:1: does not exist' && " +
		"! outrider wait --timeout 1s")
	h.captureIs("closed")
	h.RunScript("mkdir /srv/mesh; touch /srv/mesh/empty.yaml; outrider wait --timeout 30s")
	h.captureIs("on")
	h.plain("000 000 000")
	h.RunScript("systemctl stop outrider; rm -r /srv/mesh; systemctl start --no-block outrider")
	h.status("/srv/mesh:1: does not exist")
	h.RunScript("mkdir /srv/mesh; outrider wait --timeout 30s")
	h.mutual()
}

// TestStrict_Boot checks that after a boot plain text is refused, also with an invalid
// configuration, with which the agent does not start.
func TestStrict_Boot(t *testing.T) {
	t.Parallel()
	h := newStrict(t)
	h.RunScript("systemctl start outrider; systemctl enable outrider outrider-capture-early.service")
	h.captureIs("on")
	for _, broken := range []bool{false, true} {
		if broken {
			h.WriteText("/etc/outrider/conf.d/80-broken.toml", "[capture\n")
		}
		if err := h.Reboot(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.RunScript(asks)
		h.plain("000 000 000")
		if !broken {
			h.mutual()
			continue
		}
		if code := strings.TrimSpace(h.Property("outrider.service", "ExecMainStatus")); code != "78" {
			t.Errorf("the agent's exit code is %s", code)
		}
		if log := h.Journal("-b", "-u", "outrider-capture-early.service"); !strings.Contains(log,
			"new inbound connections are refused until Envoy serves") {
			t.Errorf("the journal:\n%s", log)
		}
		h.RunScript("outrider cleanup --stop")
		h.plain("200 200 200")
	}
}
