package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// mesh returns a mesh file with a number of services, all on the rig's port.
func mesh(services, port, backend int) string {
	var text strings.Builder
	for i := range services {
		fmt.Fprintf(&text, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: service-%[1]d, namespace: default}
spec:
  hosts: [service-%[1]d.test]
  ports: [{number: %[2]d, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 127.0.0.1, ports: {http: %[3]d}}]
`, i, port, backend)
	}
	return text.String()
}

// withServices returns a rig with additional services.
func withServices(t *stage, services int) *rig.Rig {
	r := rig.New(t,
		rig.Options{TOML: "[log]\nlevel = \"info\"\n[envoy]\ntermination_drain_duration = " +
			"\"0s\"\n"})
	r.WriteFile("mesh.d/services.yaml", mesh(services, r.Ports.HTTP, r.Ports.Backend))
	return r
}

type startResult struct {
	Services int           `json:"services"`
	First    time.Duration `json:"first_ever_ns"` // without cached knowledge about Envoy
	// Outriderd has the times from exec to /healthz/ready 200, including the start of the keeper.
	Outriderd []time.Duration `json:"outriderd_ns"`
	// Alone has the times from exec to LIVE of an Envoy with the same resources, static.
	Alone         []time.Duration `json:"alone_ns"`
	Median        time.Duration   `json:"outriderd_median_ns"`
	MedianAlone   time.Duration   `json:"alone_median_ns"`
	Difference    time.Duration   `json:"difference_ns"`
	MustBeAtMost  time.Duration   `json:"difference_must_be_at_most_ns"`
	ServesLastOne bool            `json:"serves_last_service"`
}

// startCost is the time that outriderd may add to Envoy's start. The benchmark runs outriderd in
// the foreground, where it also starts the keeper; under systemd the keeper has its own unit.
const startCost = 40 * time.Millisecond

// start alternates starts of outriderd and of a standalone Envoy.
func start(t *stage, s settings) any {
	r := withServices(t, s.services)
	result := &startResult{Services: s.services, MustBeAtMost: startCost, First: startOnce(t, r)}
	code, _, err := r.GetHostThroughEnvoy(fmt.Sprintf("service-%d.test", s.services-1),
		r.Ports.HTTP, "/")
	if result.ServesLastOne = err == nil && code == 200; !result.ServesLastOne {
		t.Errorf("the last service: status %d, %v", code, err)
	}
	bootstrap := static(t, r, false)
	stopOnce(t, r)
	folder := parts.ShortDir(t)
	defer removeSharedMemory(baseIDAlone())
	for range s.runs {
		result.Outriderd = append(result.Outriderd, startOnce(t, r))
		stopOnce(t, r)
		envoy := startAlone(t, folder, bootstrap, baseIDAlone(), 0, time.Second, 2*time.Second)
		envoy.stop()
		result.Alone = append(result.Alone, envoy.took)
	}
	result.Median, result.MedianAlone = median(result.Outriderd), median(result.Alone)
	result.Difference = result.Median - result.MedianAlone
	fmt.Printf("%d services, %d runs in turn: outriderd to ready %s, Envoy alone to LIVE %s, "+
		"difference %s (at most %s); first ever %s\n", s.services, s.runs,
		millis(result.Median), millis(result.MedianAlone), millis(result.Difference),
		millis(startCost), millis(result.First))
	t.target(s, result.Difference <= startCost, "outriderd adds %s to a start",
		millis(result.Difference))
	return result
}

func startOnce(t *stage, r *rig.Rig) time.Duration {
	t.Helper()
	// Use a single connection, since requests compete for two processors.
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	address := fmt.Sprintf("http://127.0.0.1:%d/healthz/ready", r.Ports.Status)
	begun := time.Now()
	daemon := r.Start()
	for !ready(client, address) {
		if !daemon.Running() || time.Since(begun) > 30*time.Second {
			t.Fatalf("outriderd is not ready after %v:\n%s", time.Since(begun), daemon.Output())
		}
		time.Sleep(readyPoll)
	}
	return time.Since(begun)
}

func stopOnce(t *stage, r *rig.Rig) {
	t.Helper()
	daemon := r.Daemon()
	_ = daemon.Process.Signal(syscall.SIGTERM)
	if exit := daemon.Wait(t, 30*time.Second); exit != 0 {
		t.Errorf("outriderd ended with %d:\n%s", exit, daemon.Output())
	}
	rig.Eventually(t, 5*time.Second, "nothing is left",
		func() bool { return len(r.ProcessIDs("envoy"))+len(r.ProcessIDs("outrider-keeper")) == 0 })
}

type idleResult struct {
	Services  int           `json:"services"`
	Over      time.Duration `json:"over_ns"`
	Agent     usage         `json:"agent"`
	Keeper    usage         `json:"keeper"`
	RSS       int           `json:"rss_bytes"`       // of agent and keeper
	Anonymous int           `json:"anonymous_bytes"` // of agent and keeper
	Size      int64         `json:"outriderd_stripped_bytes"`
}

// usage is the resource usage of a process.
type usage struct {
	RSS       int `json:"rss_bytes"`
	Anonymous int `json:"anonymous_bytes"`
	Ticks     int `json:"ticks"`    // processor time while idle, in ticks of 10 ms
	Switches  int `json:"switches"` // context switches while idle
}

// warmUp is the time between a start and the measurement of idle usage.
const warmUp = 5 * time.Second

// idle measures the resource usage of the idle agent and keeper.
func idle(t *stage, s settings) any {
	r := withServices(t, s.services)
	daemon := r.StartReady()
	time.Sleep(warmUp)
	keepers := r.ProcessIDs("outrider-keeper")
	if len(keepers) != 1 {
		t.Fatalf("keepers: %v", keepers)
	}
	result := &idleResult{Services: s.services, Over: s.idle}
	before := []int{ticks(t, daemon.Process.Pid), ticks(t, keepers[0])}
	switches := []int{parts.ContextSwitches(t, daemon.Process.Pid),
		parts.ContextSwitches(t, keepers[0])}
	time.Sleep(s.idle)
	result.Agent, result.Keeper = memory(t, daemon.Process.Pid), memory(t, keepers[0])
	result.Agent.Ticks = ticks(t, daemon.Process.Pid) - before[0]
	result.Keeper.Ticks = ticks(t, keepers[0]) - before[1]
	result.Agent.Switches = parts.ContextSwitches(t, daemon.Process.Pid) - switches[0]
	result.Keeper.Switches = parts.ContextSwitches(t, keepers[0]) - switches[1]
	result.RSS, result.Anonymous = result.Agent.RSS+result.Keeper.RSS, result.Agent.Anonymous+
		result.Keeper.Anonymous
	info, err := os.Stat(r.Programs.Path("outriderd"))
	if err != nil {
		t.Fatal(err)
	}
	result.Size = info.Size()
	megabytes := func(bytes int) float64 { return float64(bytes) / (1 << 20) }
	for _, one := range []struct {
		name string
		usage
	}{{"outriderd", result.Agent}, {"keeper", result.Keeper},
		{"both", usage{result.RSS, result.Anonymous, result.Agent.Ticks + result.Keeper.Ticks,
			result.Agent.Switches + result.Keeper.Switches}}} {
		fmt.Printf("%-10s RSS %5.1f MB, anonymous %5.1f MB, %d ticks and %d context switches in %v\n",
			one.name, megabytes(one.RSS), megabytes(one.Anonymous), one.Ticks, one.Switches, s.idle)
	}
	fmt.Printf("outriderd stripped: %.1f MB\n", megabytes(int(result.Size)))
	t.target(s, megabytes(result.RSS) <= 36, "RSS of both is above 36 MB")
	t.target(s, megabytes(result.Anonymous) <= 11, "anonymous memory of both is above 11 MB")
	t.target(s, result.Agent.Ticks+result.Keeper.Ticks == 0,
		"processor time is used while nothing happens")
	t.target(s, megabytes(int(result.Size)) <= 30, "outriderd is larger than 30 MB")
	return result
}

// ticks returns the processor time of a process in ticks.
func ticks(t *stage, pid int) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	var user, system int
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		t.Fatal(err)
	}
	return user + system
}

func memory(t *stage, pid int) usage {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "smaps_rollup"))
	if err != nil {
		t.Fatal(err)
	}
	var u usage
	for line := range strings.Lines(string(text)) {
		var kilobytes int
		if n, _ := fmt.Sscanf(line, "Rss: %d kB", &kilobytes); n == 1 {
			u.RSS = kilobytes << 10
		}
		if n, _ := fmt.Sscanf(line, "Anonymous: %d kB", &kilobytes); n == 1 {
			u.Anonymous = kilobytes << 10
		}
	}
	return u
}
