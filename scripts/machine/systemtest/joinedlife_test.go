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

// joinedLimit bounds each wait. After an outage of the API server istiod may wait for a minute
// before it tries again.
const joinedLimit = 2 * time.Minute

// joinedLoad is the load from one host during the test: plain to plain.test, which is on the host
// itself, and mutual to web.test, with mutual TLS.
type joinedLoad struct {
	plain, mutual *Load
}

// Labels of the events between which requests may be lost: those that the killed machine had not
// yet answered.
const (
	dying = "machine is killed"
	dead  = "machine is dead"
)

// Two machines on which nothing but the package is installed each join with one command, without
// Kubernetes, and no request is lost until one of them is killed and the other leaves.
func TestJoined_LifeOfAFleet(t *testing.T) {
	f := newJoinedFleet(t)
	f.startDiscoveryd()
	f.live()
}

// The hosts go through the same steps with the same mesh configuration, but join a real istiod.
func TestJoined_LifeOfAFleetWithIstiod(t *testing.T) {
	f := newJoinedFleet(t)
	f.startIstiod()
	// istiod decides at the first registration of a workload whether the workload reports its
	// health, so the probe must be configured before.
	for _, h := range f.hosts {
		h.WriteText("/etc/outrider/conf.d/40-health.toml", joinedHealth)
	}
	f.live()
}

// live makes the hosts join, and under load changes health and routes, restarts agents, server and
// registry, kills a machine, and more. No request may be lost except for those that the killed
// machine had not yet answered.
func (f *joinedFleet) live() {
	t := f.t
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

	settings := configuration + joinedHealth
	if full() { // a short lifetime, so that certificates are renewed during the test
		settings += "[identity]\nttl = \"1m\"\n"
	}
	for _, h := range f.hosts {
		h.WriteText("/etc/outrider/conf.d/50-life.toml", settings)
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
	step("registry restarted", f.restartRegistry)
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

	one.RunScript("outrider leave")
	f.entries("the host has left", 0, nil)
	if got := one.get("web.test", 7080, ""); strings.HasSuffix(got, "200") {
		t.Errorf("a host that has left still reaches the mesh: %s", got)
	}
}

// reload makes a hot restart, and waits until the agent is ready.
func (h *joinedHost) reload() {
	h.t.Helper()
	h.RunScript("systemctl reload outrider.service; outrider wait --timeout 30s")
}

// entries waits until exactly number workloads are registered, and holds, if not nil, returns true
// for the WorkloadEntry of each.
func (f *joinedFleet) entries(what string, number int, holds func(string) bool) {
	f.t.Helper()
	parts.EventuallyWithObservation(f.t, joinedLimit, what, func() (bool, string) {
		all, err := f.server.entries()
		return err == nil && len(all) == number && (holds == nil ||
				!slices.ContainsFunc(all, func(text string) bool { return !holds(text) })),
			strings.Join(all, "\n")
	})
}

// connected reports whether the workload of a WorkloadEntry is connected to the server.
func connected(entry string) bool { return strings.Contains(entry, "istio.io/connectedAt") }

// flipHealth makes the second host, flipping, unhealthy, until only the first host answers requests
// of client, and then healthy again.
func (f *joinedFleet) flipHealth(client, flipping *joinedHost) {
	flipping.RunScript("systemctl stop gate.service")
	client.awaitAnswering(f.hosts[0].name)
	flipping.RunScript("systemctl start gate.service")
	client.awaitAnswering("both")
}

// shift routes all requests to v2, then to v1, then to both, and waits each time until only those
// answer.
func (f *joinedFleet) shift(client *joinedHost) {
	for _, version := range []string{"v2", "v1"} {
		f.route("host: web.test, subset: " + version)
		client.awaitAnswering(version)
	}
	f.route("host: web.test")
	client.awaitAnswering("both")
}

// killServer kills the server. The process that replaces it takes over all workloads and removes
// none.
func (f *joinedFleet) killServer() {
	f.t.Helper()
	instance := f.server.kill()
	f.entries("the next instance has both workloads", 2, func(text string) bool {
		return strings.Contains(text, instance) && connected(text)
	})
	f.hosts[0].awaitAnswering("both")
}

// restartRegistry goes through the outages of the registry. None of them removes a workload.
func (f *joinedFleet) restartRegistry() {
	f.t.Helper()
	for _, outage := range f.server.outages() {
		outage()
		f.entries("the registry has the workloads", 2, nil)
		f.hosts[0].awaitAnswering("both")
	}
	f.flipHealth(f.hosts[0], f.hosts[1])
}

// rotate replaces the CA step by step. After each step both hosts renew their certificates and
// still serve each other, so the last certificates are of the new CA.
func (f *joinedFleet) rotate() {
	f.t.Helper()
	for _, step := range f.server.rotation() {
		step()
		before := [2]string{f.hosts[0].serial(), f.hosts[1].serial()}
		for i, h := range f.hosts {
			h.Eventually(joinedLimit, "the certificate is renewed", func() bool {
				return h.serial() != before[i]
			})
		}
		f.hosts[0].awaitAnswering("both")
	}
}

// rebootOffline reboots a host while the server and the registry are stopped. The host then serves
// with the configuration and the certificate that it has stored.
func (f *joinedFleet) rebootOffline(h *joinedHost) {
	f.t.Helper()
	f.server.away(func() {
		if err := h.Reboot(f.t.Context()); err != nil {
			f.t.Fatal(err)
		}
		h.Eventually(time.Minute, "the agent is ready", func() bool {
			return h.Property("outrider.service", "ActiveState") == "active"
		})
		f.hosts[0].awaitAnswering("both")
	})
	f.entries("both workloads are connected", 2, connected)
	f.hosts[0].awaitAnswering("both")
}

// rejoin makes a host leave the mesh, and join it again with a new token.
func (f *joinedFleet) rejoin(h *joinedHost) {
	f.t.Helper()
	h.RunScript("outrider leave")
	f.entries("the host has left", 1, nil)
	f.hosts[0].awaitAnswering(f.hosts[0].name)
	f.invite(h)
	h.RunScript(h.joinCommand())
	f.hosts[0].awaitAnswering("both")
}

// serial returns the serial number of the host's workload certificate.
func (h *joinedHost) serial() string {
	return (&certified{Host: h.Host}).workload().Serial
}

// expire waits until the server has removed the WorkloadEntry of the killed machine, which it does
// after the grace period.
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

// failedRequests is a script that prints the numbers of failed requests in the access log by
// second, status code, response flags and upstream host.
const failedRequests = `grep -v '" 200 ' ` + joinedLog + ` |
awk '{print substr($1, 13, 8), $5, $6, $NF}' | sort | uniq -c | tail -n 60`

// startLoad starts both loads on the first host.
func (f *joinedFleet) startLoad() *joinedLoad {
	start := func(rate float64, host string, port int) *Load {
		if !full() {
			rate = 0.05
		}
		address := fmt.Sprintf("127.0.0.1:%d", port)
		return f.hosts[0].StartLoad(rate, "-host", host, "-http", address, "-http2", address, "-tcp",
			// on a busy machine a response may take longer than the default timeout
			"", "-timeout", "30s")
	}
	return &joinedLoad{plain: start(standard(), "plain.test", 7081),
		mutual: start(joinedRate, "web.test", 7080)}
}

// joinedRate is the rate of the load with mutual TLS, relative to the standard load. Two processors
// can carry it in addition to the load without TLS and the machines.
const joinedRate = 0.1

func (l *joinedLoad) mark(label string) {
	l.plain.Mark(label)
	l.mutual.Mark(label)
}

// stop ends both loads. It fails the test if a request was lost, except for requests with mutual
// TLS around the time at which the machine was killed.
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
		// On a busy machine, requests that are unanswered at the kill may have begun seconds
		// earlier, and the closed connections may be detected late.
		for second := at[dying] - 5; running == l.mutual && second <= at[dead]+1; second++ {
			permitted[second] = true
		}
		if lost := rig.CountLosses(report, permitted); len(lost) > 0 || report.Total == 0 {
			t.Errorf("%s: lost of %d requests: %v\n%v\n%s", what, report.Total, lost, report,
				running.h.RunScript(failedRequests))
		}
		lostAt(t, what, report)
	}
}

// lostAt logs the errors of each second in which requests were lost.
func lostAt(t *testing.T, what string, report load.Report) {
	t.Helper()
	for _, second := range report.Seconds {
		if len(second.Errors) > 0 {
			t.Logf("%s: second %d: %v", what, second.Second, second.Errors)
		}
	}
}
