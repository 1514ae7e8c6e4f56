package systemtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/load"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// joinedLoad is the load on a host during its life: to itself without TLS, and to the mesh.
type joinedLoad struct {
	plain, mutual *Load
}

// Marks between which requests to a machine that is killed may be lost: it had them in flight.
const (
	dying = "machine is killed"
	dead  = "machine is dead"
)

// Two machines that have only the package join with one command each, without Kubernetes. Under
// load they live through everything that a fleet does, until one of them is killed and the other
// leaves. Only requests that the killed machine had in flight are lost.
func TestJoined_LifeOfAFleet(t *testing.T) {
	f := newJoinedFleet(t)
	one, two := f.hosts[0], f.hosts[1]
	f.invite(one)
	f.invite(two)
	begun := time.Now()
	commands := one.join()
	two.join()
	one.reaches("v2")
	took := time.Since(begun).Round(10 * time.Millisecond)
	t.Logf("the first request with mutual TLS after %d commands each and %v", commands, took)
	if full() && took > time.Minute || commands > 3 {
		t.Errorf("the first request took %v", took)
	}
	two.reaches("v1")
	one.awaitAnswering("both")

	for _, h := range f.hosts {
		h.Write("/etc/systemd/system/gate.service", "[Service]\nExecStart=/bin/sleep infinity\n"+
			"[Install]\nWantedBy=multi-user.target\n")
		h.Script("systemctl daemon-reload; systemctl enable --now gate.service")
		h.Write("/etc/outrider/conf.d/50-life.toml", configuration+
			"[health]\nunit = \"gate.service\"\nperiod = \"200ms\"\n")
		h.reload()
	}
	f.entries("the health is reported", 2, func(text string) bool {
		return strings.Contains(text, `"status":"True"`)
	})
	running := f.startLoad()
	step := func(name string, do func()) {
		running.mark(name)
		do()
		t.Logf("%s: done after %v", name, time.Since(begun).Round(100*time.Millisecond))
	}
	step("health", func() { f.flipHealth(one, two) })
	step("canary", func() { f.shift(one) })
	step("hot restarts", func() {
		one.reload()
		two.reload()
	})
	step("server killed", f.killServer)
	step("Consul restarted", f.restartConsul)
	if full() {
		step("authority rotated", f.rotate)
		step("machine rebooted offline", func() { f.rebootOffline(two) })
		step("machine leaves and joins", func() { f.rejoin(two) })
	}
	step(dying, func() {
		if err := two.Close(); err != nil {
			t.Error(err)
		}
	})
	step(dead, f.expire)
	running.stop(t)

	one.Script("outrider leave")
	f.entries("the host has left", 0, nil)
	if got := one.get("web.test", 7080, ""); strings.HasSuffix(got, "200") {
		t.Errorf("a host that has left still reaches the mesh: %s", got)
	}
}

// reload is a hot restart.
func (h *joinedHost) reload() {
	h.t.Helper()
	h.Script("systemctl reload outrider.service; outrider wait --timeout 30s")
}

// entries waits until there is a number of registered workloads in Consul, all of which fulfil a
// condition; nil: none.
func (f *joinedFleet) entries(what string, number int, holds func(string) bool) {
	f.t.Helper()
	parts.EventuallySees(f.t, time.Minute, what, func() (bool, string) {
		text, err := f.server.Run(f.t.Context(), "/opt/consul/consul", "kv", "get", "-recurse",
			"outrider/registration/workloads/")
		var lines []string
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "outrider/registration/workloads/") {
				lines = append(lines, line)
			}
		}
		return err == nil && len(lines) == number && (holds == nil ||
			!slices.ContainsFunc(lines, func(line string) bool { return !holds(line) })), text
	})
}

// flipHealth makes one of two hosts unhealthy for some time.
func (f *joinedFleet) flipHealth(client, flipping *joinedHost) {
	flipping.Script("systemctl stop gate.service")
	client.awaitAnswering(f.hosts[0].name)
	flipping.Script("systemctl start gate.service")
	client.awaitAnswering("both")
}

// shift sends all requests to one version, then to the other, then to both.
func (f *joinedFleet) shift(client *joinedHost) {
	for _, version := range []string{"v2", "v1"} {
		f.route("host: web.test, subset: " + version)
		client.awaitAnswering(version)
	}
	f.route("host: web.test")
	client.awaitAnswering("both")
}

// killServer kills outrider-discoveryd. The next instance takes the workloads over, and removes none
// when the lease of the one before has expired.
func (f *joinedFleet) killServer() {
	f.t.Helper()
	before := f.instance()
	f.server.Script("systemctl kill -s KILL outrider-discoveryd.service")
	instance := ""
	f.server.Eventually(time.Minute, "only the next instance has a lease", func() bool {
		instance = f.instance()
		return instance != "" && instance != before
	})
	f.entries("the instance has both workloads", 2, func(text string) bool {
		return strings.Contains(text, instance) && strings.Contains(text, "istio.io/connectedAt")
	})
	f.hosts[0].awaitAnswering("both")
}

// instance returns the instance of outrider-discoveryd that has the only lease; "": there are
// several.
func (f *joinedFleet) instance() string {
	const prefix = "outrider/registration/servers/"
	text, err := f.server.Run(f.t.Context(), "/opt/consul/consul", "kv", "get", "-keys", prefix)
	if err != nil || strings.Count(text, prefix) != 1 {
		return ""
	}
	return strings.TrimPrefix(text, prefix)
}

// restartConsul restarts Consul in order, kills it, and has it away for longer than the grace
// period. Its data stay. Nothing is removed because of that.
func (f *joinedFleet) restartConsul() {
	for _, command := range []string{"systemctl restart consul.service",
		"systemctl kill -s KILL consul.service",
		fmt.Sprintf("systemctl stop consul.service; sleep %d; systemctl start consul.service",
			int((joinedGrace + 2*time.Second).Seconds()))} {
		f.server.Script(command)
		f.entries("Consul has the workloads", 2, nil)
		f.hosts[0].awaitAnswering("both")
	}
	f.flipHealth(f.hosts[0], f.hosts[1])
}

// rotate replaces the authority: old, both, new. All certificates are of the new one in the end.
func (f *joinedFleet) rotate() {
	s := f.server
	s.Script(`set -eu
outrider-discoveryd ca init /etc/outrider/ca2 mesh.test
chown outrider-discoveryd /etc/outrider/ca2/*.key
cat /etc/outrider/ca/root.pem /etc/outrider/ca2/root.pem >/etc/outrider/roots.pem`)
	old, next := "/etc/outrider/ca/", "/etc/outrider/ca2/"
	for _, files := range [][3]string{{old + "ca.pem", old + "ca.key", "/etc/outrider/roots.pem"},
		{next + "ca.pem", next + "ca.key", "/etc/outrider/roots.pem"},
		{next + "ca.pem", next + "ca.key", next + "root.pem"}} {
		before := [2]string{f.hosts[0].serial(), f.hosts[1].serial()}
		s.Write("/etc/outrider/discoveryd.d/30-rotated.toml", fmt.Sprintf(
			"[ca]\ncert_file = %q\nkey_file = %q\nroot_file = %q\n",
			files[0], files[1], files[2]))
		s.Script("systemctl reload outrider-discoveryd.service")
		for i, h := range f.hosts {
			h.Eventually(2*time.Minute, "the certificate is renewed", func() bool {
				return h.serial() != before[i]
			})
		}
		f.hosts[0].awaitAnswering("both")
	}
}

// rebootOffline reboots a host while Consul and outrider-discoveryd are away. It serves with what it
// has stored.
func (f *joinedFleet) rebootOffline(h *joinedHost) {
	f.t.Helper()
	f.server.Script("systemctl stop outrider-discoveryd.service consul.service")
	if err := h.Reboot(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	h.Eventually(time.Minute, "the agent is ready", func() bool {
		return h.Property("outrider.service", "ActiveState") == "active"
	})
	f.hosts[0].awaitAnswering("both")
	f.server.Script("systemctl start consul.service outrider-discoveryd.service")
	f.entries("both workloads are connected", 2, func(text string) bool {
		return strings.Contains(text, "istio.io/connectedAt")
	})
	f.hosts[0].awaitAnswering("both")
}

// rejoin has a host leave the mesh, and join it again with a new token.
func (f *joinedFleet) rejoin(h *joinedHost) {
	f.t.Helper()
	h.Script("outrider leave")
	f.entries("the host has left", 1, nil)
	f.hosts[0].awaitAnswering(f.hosts[0].name)
	f.invite(h)
	h.Script(h.joinCommand())
	f.hosts[0].awaitAnswering("both")
}

// serial returns the serial number of the workload's certificate.
func (h *joinedHost) serial() string {
	return (&certified{Host: h.Host}).workload().Serial
}

// expire waits until the entry of the killed machine is removed, after the grace period.
func (f *joinedFleet) expire() {
	begun := time.Now()
	f.entries("the entry of the killed machine is removed", 1, nil)
	took := time.Since(begun)
	f.t.Logf("removed %v after the machine was dead, with a grace period of %v", took.Round(10*time.Millisecond),
		joinedGrace)
	if full() && took > joinedGrace+2*time.Second {
		f.t.Errorf("removed after %v", took)
	}
	f.hosts[0].awaitAnswering(f.hosts[0].name)
}

// failedRequests prints the numbers of failed requests by second, status, flags and upstream host.
const failedRequests = `grep -v '" 200 ' ` + joinedLog + ` |
awk '{print substr($1, 13, 8), $5, $6, $NF}' | sort | uniq -c | tail -n 60`

// startLoad starts the load on the first host.
func (f *joinedFleet) startLoad() *joinedLoad {
	start := func(rate float64, host string, port int) *Load {
		if !full() {
			rate = 0.05
		}
		address := fmt.Sprintf("127.0.0.1:%d", port)
		return f.hosts[0].StartLoad(rate, "-host", host, "-http", address, "-http2", address, "-tcp",
			"", "-timeout", "30s") // a busy machine may take longer than the usual limit
	}
	return &joinedLoad{plain: start(standard(), "plain.test", 7081),
		mutual: start(joinedRate, "web.test", 7080)}
}

// joinedRate is the part of the standard load that two processors carry with mutual TLS beside the
// rest.
const joinedRate = 0.1

func (l *joinedLoad) mark(label string) {
	l.plain.Mark(label)
	l.mutual.Mark(label)
}

// stop ends the load, and fails the test if requests were lost that the killed machine did not have.
func (l *joinedLoad) stop(t *testing.T) {
	t.Helper()
	for what, running := range map[string]*Load{"without TLS": l.plain, "mutual TLS": l.mutual} {
		report := running.Stop()
		t.Logf("%s: %d requests in %v, %d lost", what, report.Total,
			report.Duration.Round(time.Second), report.Lost)
		at := map[string]int{}
		for _, mark := range report.Marks {
			at[mark.Label] = int(mark.At.Seconds())
		}
		permitted := map[int]bool{}
		// what is in flight at the kill may have begun seconds before on a busy machine, which may
		// also notice closed connections late
		for second := at[dying] - 5; running == l.mutual && second <= at[dead]+1; second++ {
			permitted[second] = true
		}
		if lost := rig.Losses(report, permitted); len(lost) > 0 || report.Total == 0 {
			t.Errorf("%s: lost of %d requests: %v\n%v\n%s", what, report.Total, lost, report,
				running.h.Script(failedRequests))
		}
		lostAt(t, what, report)
	}
}

// lostAt logs when requests were lost.
func lostAt(t *testing.T, what string, report load.Report) {
	t.Helper()
	for _, second := range report.Seconds {
		if len(second.Errors) > 0 {
			t.Logf("%s: second %d: %v", what, second.Second, second.Errors)
		}
	}
}
