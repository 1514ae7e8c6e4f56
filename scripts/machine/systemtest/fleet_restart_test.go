package systemtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts/cluster"
	"outrider.org/outrider/scripts/rig"
)

// Hot restarts, restarts and kills of the agents lose no request, and the server's WorkloadEntry is
// always healthy. istiod would remove it ten seconds after the end of the last stream.
func TestFleet_RestartsLoseNothing(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.restart(1, f.client, "web.test", "240.240.0.10", f.server, f.client)
	if full() {
		f.create(plainService)
		f.server.RunScript("ip route add 240.240.0.20 via " + f.networks[0].Peer)
		f.server.Eventually(time.Minute, "the server's Envoy has the service", func() bool {
			_, err := f.server.Run(t.Context(), "curl", "-sf", "-H", "Host: plain.test",
				"http://240.240.0.20/")
			return err == nil
		})
		f.restart(10, f.server, "plain.test", "240.240.0.20", f.server)
	}
}

// plainService is a ServiceEntry without TLS, whose endpoint is the backend of the machine that
// calls it: two processors cannot carry the standard load with mutual TLS on both sides.
var plainService = meshObject{"serviceentries", `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: plain, namespace: vm}
spec:
  hosts: [plain.test]
  addresses: [240.240.0.20]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: tcp, protocol: TCP}]
  endpoints: [{address: 127.0.0.1, ports: {http: 9000, tcp: 9001}}]
`}

// restart reloads the agent of each of machines (a hot restart of Envoy), restarts its unit, and
// kills it with SIGKILL, each the given number of times. Meanwhile from sends load to a service at
// an address. No request may be lost, and the server's WorkloadEntry must always be healthy.
func (f *fleet) restart(times int, from *Host, service, address string, machines ...*Host) {
	f.t.Helper()
	now := f.await("True")
	seen := f.cluster.WatchWorkloadEntry("vm", "web-"+f.address, cluster.WorkloadEntry.UIDAndHealth)
	load := from.StartLoad(standard(), "-host", service, "-http", address+":80", "-http2",
		address+":80", "-tcp", address+":81")
	for _, step := range []string{"systemctl reload outrider.service",
		"systemctl restart outrider.service", "systemctl kill -s KILL outrider.service"} {
		for range times {
			for _, h := range machines {
				load.Mark(h.Name() + ": " + step)
				h.RunScript(step)
				h.Eventually(time.Minute, h.Name()+" is ready after "+step, func() bool {
					out, err := h.Run(f.t.Context(), "outrider", "wait", "--timeout", "10s")
					return err == nil && out == "ready"
				})
			}
			before := now
			f.server.Eventually(time.Minute, "the server has connected again", func() bool {
				now = f.await("")
				return now.ConnectedAt() != "" && now.ConnectedAt() != before.ConnectedAt()
			})
		}
	}
	report := load.Stop()
	f.t.Logf("%s: %d requests in %v, %d lost", service, report.Total, report.Duration, report.Lost)
	if lost := rig.CountLosses(report, nil); len(lost) > 0 || report.Total == 0 {
		f.t.Errorf("lost of %d requests: %v\n%v", report.Total, lost, report)
	}
	if got, want := seen(), []string{now.Metadata.UID + " True"}; !slices.Equal(got, want) {
		f.t.Errorf("the WorkloadEntry was %q, not always %q", got, want)
	}
}

// As long as nothing is restarted, outrider-capture does not withdraw its rules, so no connection
// bypasses Envoy, even if other programs keep all processors busy.
func TestFleet_SteadyLoadStaysCaptured(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.create(plainService)
	f.server.RunScript("ip route add 240.240.0.20 via " + f.networks[0].Peer)
	f.server.Eventually(time.Minute, "the server's Envoy has the service", func() bool {
		return strings.HasSuffix(f.server.call("plain.test", "240.240.0.20", ""), "200")
	})
	duration := 10 * time.Second
	if full() {
		duration = 10 * time.Minute
		for range 3 {
			busy := f.server.Command(t.Context(), "timeout", "660", "sh", "-c", "while :; do :; done")
			if err := busy.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = busy.Process.Kill(), busy.Wait() }()
		}
	}
	load := f.server.StartLoad(standard(), "-host", "plain.test", "-http", "240.240.0.20:80",
		"-http2", "", "-tcp", "", "-duration", duration.String())
	report := load.Stop()
	t.Logf("%d requests in %v, %d lost", report.Total, report.Duration, report.Lost)
	if lost := rig.CountLosses(report, nil); len(lost) > 0 || report.Total == 0 {
		t.Errorf("lost of %d requests: %v\n%v", report.Total, lost, report)
	}
	journal := f.server.RunScript("journalctl -q -o cat -u outrider-capture.service")
	if strings.Contains(journal, "capture is withdrawn") {
		t.Errorf("the rules were withdrawn:\n%s", journal)
	}
}
