package main

import (
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// fleetResult is the result of an agent with an upstream server.
type fleetResult struct {
	Services int `json:"services"`
	// PilotAgent has pilot-agent's times from exec to /healthz/ready 200.
	PilotAgent []time.Duration `json:"pilot_agent_ready_ns"`

	Ready []time.Duration `json:"ready_ns"` // from exec to /healthz/ready 200
	// Cached has times from exec to /healthz/ready 200 while istiod does not run.
	Cached []time.Duration `json:"cached_ns"`
	// Alone has times from exec to LIVE of an Envoy with the same resources in its bootstrap.
	Alone []time.Duration `json:"alone_ns"`

	MedianReady  time.Duration `json:"ready_median_ns"`
	MedianCached time.Duration `json:"cached_median_ns"`
	MedianPilot  time.Duration `json:"pilot_agent_median_ns"`
	MedianAlone  time.Duration `json:"alone_median_ns"`

	Away     time.Duration `json:"istiod_away_ns"`
	Requests int           `json:"requests"` // sent while istiod did not run
	Lost     int           `json:"lost"`
	CaughtUp time.Duration `json:"caught_up_ns"` // from istiod's return until a change arrived

	ManyServices int `json:"many_services"`
	RSS          int `json:"rss_bytes"` // of agent and keeper together, with ManyServices
	PilotRSS     int `json:"pilot_agent_rss_bytes"`
}

// Performance targets of an agent on a VM with an istiod.
const (
	// cachedCost is the most time that a start from the cache may take beyond Envoy's own time
	cachedCost   = time.Second
	catchUpTime  = 2 * time.Second // most that a change may take after istiod's return
	readyShare   = 0.7             // most that a start may take, relative to pilot-agent
	manyServices = 1000
)

// upstreamRig is a rig whose Envoy is configured by istiod.
type upstreamRig struct {
	*rig.Rig
	t      *stage
	ports  [3]int
	istiod *exec.Cmd
}

func newUpstreamRig(t *stage, services int) *upstreamRig {
	t.Helper()
	u := &upstreamRig{t: t, Rig: rig.New(t, rig.Options{TOML: "[log]\nlevel = \"info\"\n"})}
	for i := range u.ports {
		u.ports[i] = parts.FreePort(t)
	}
	u.WriteFile("istio.d/services.yaml", mesh(services, u.Ports.HTTP, u.Ports.Backend))
	// the host to which the load sends requests
	u.WriteFile("istio.d/web.yaml", u.WebServiceYAML(u.Ports.Backend))
	u.startIstiod()
	u.SetTOML(fmt.Sprintf("[discovery]\naddress = %q\nauth = \"none\"\n"+
		"[envoy]\ntermination_drain_duration = \"0s\"\n", u.address()))
	return u
}

func (u *upstreamRig) address() string { return fmt.Sprintf("127.0.0.1:%d", u.ports[0]) }

// startOnce returns the time from exec to readiness.
func (a *sdsAgent) startOnce(t *stage) time.Duration {
	t.Helper()
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	begun := time.Now()
	a.start()
	for !ready(client, fmt.Sprintf("http://127.0.0.1:%d/healthz/ready", a.status)) {
		if time.Since(begun) > 30*time.Second {
			t.Fatal("pilot-agent is not ready")
		}
		time.Sleep(readyPoll)
	}
	return time.Since(begun)
}

func (u *upstreamRig) startIstiod() {
	u.t.Helper()
	var err error
	if u.istiod, err = parts.IstiodCommand(filepath.Join(u.Dir, "istio.d"),
		"enableAutoMtls: false\n", parts.ShortDir(u.t), u.ports); err != nil {
		u.t.Fatal(err)
	}
	if err := u.istiod.Start(); err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(u.stopIstiod)
	rig.Eventually(u.t, time.Minute, "istiod listens", func() bool {
		connection, err := net.Dial("tcp", u.address())
		if err == nil {
			_ = connection.Close()
		}
		return err == nil
	})
}

func (u *upstreamRig) stopIstiod() {
	_ = u.istiod.Process.Kill()
	_ = u.istiod.Wait()
}

// fleet measures starts with and without istiod, a minute under load without istiod, and memory.
func fleet(t *stage, s settings) any {
	result := &fleetResult{Services: s.services, ManyServices: manyServices, Away: s.sustain}
	u := newUpstreamRig(t, s.services)
	startOnce(t, u.Rig) // fills the cache of facts about the Envoy binary
	bootstrap := static(t, u.Rig, false)
	u.awayUnderLoad(s, result)
	stopOnce(t, u.Rig)
	folder := parts.ShortDir(t)
	defer removeSharedMemory(baseIDAlone())
	pilot := istioAgent(t, u.address())
	pilot.issue(t, pkitest.NewAuthority(t, "root", nil))
	for range s.runs {
		result.Ready = append(result.Ready, startOnce(t, u.Rig))
		stopOnce(t, u.Rig)
		result.PilotAgent = append(result.PilotAgent, pilot.startOnce(t))
		pilot.stop()
		envoy := startAlone(t, folder, bootstrap, baseIDAlone(), 0, time.Second, 2*time.Second)
		envoy.stop()
		result.Alone = append(result.Alone, envoy.took)
	}
	u.stopIstiod()
	for range s.runs {
		result.Cached = append(result.Cached, startOnce(t, u.Rig))
		stopOnce(t, u.Rig)
	}
	result.MedianReady, result.MedianCached = median(result.Ready), median(result.Cached)
	result.MedianAlone, result.MedianPilot = median(result.Alone), median(result.PilotAgent)

	many := newUpstreamRig(t, manyServices)
	daemon := many.StartReady()
	time.Sleep(warmUp)
	for _, pid := range append(many.ProcessIDs("outrider-keeper"), daemon.Process.Pid) {
		result.RSS += memory(t, pid).RSS
	}
	stopOnce(t, many.Rig)
	pilot = istioAgent(t, many.address())
	pilot.issue(t, pkitest.NewAuthority(t, "root", nil))
	pilot.startOnce(t)
	time.Sleep(warmUp)
	result.PilotRSS = memory(t, pilot.pid).RSS
	pilot.stop()
	fmt.Printf("%d services, %d runs: ready %s with istiod, %s without, pilot-agent %s, "+
		"Envoy alone %s\n"+
		"istiod away for %v: %d of %d requests lost, caught up after %s\n"+
		"%d services: agent and keeper %.1f MB, pilot-agent %.1f MB\n",
		s.services, s.runs, millis(result.MedianReady), millis(result.MedianCached),
		millis(result.MedianPilot), millis(result.MedianAlone),
		result.Away, result.Lost, result.Requests, millis(result.CaughtUp), manyServices,
		float64(result.RSS)/(1<<20), float64(result.PilotRSS)/(1<<20))
	t.target(s, float64(result.MedianReady) <= readyShare*float64(result.MedianPilot),
		"exec to ready is more than %.1f times pilot-agent's", readyShare)
	t.target(s, result.MedianCached-result.MedianAlone <= cachedCost, "a start without istiod")
	t.target(s, result.Lost == 0 && result.CaughtUp <= catchUpTime, "istiod away")
	t.target(s, result.RSS <= result.PilotRSS, "memory with %d services", manyServices)
	return result
}

// awayUnderLoad stops istiod for a time, during which a service is added.
func (u *upstreamRig) awayUnderLoad(s settings, result *fleetResult) {
	u.t.Helper()
	load := u.StartLoad(s.rate)
	u.stopIstiod()
	u.WriteFile("istio.d/services.yaml", mesh(s.services+1, u.Ports.HTTP, u.Ports.Backend))
	time.Sleep(s.sustain)
	u.startIstiod()
	listens := time.Now()
	last := fmt.Sprintf("service-%d.test", s.services)
	rig.Eventually(u.t, time.Minute, "the new service answers", func() bool {
		status, _, err := u.GetHostThroughEnvoy(last, u.Ports.HTTP, "/")
		return err == nil && status == 200
	})
	result.CaughtUp = time.Since(listens)
	report := load.Stop()
	result.Requests, result.Lost = report.Total, report.Lost
}
