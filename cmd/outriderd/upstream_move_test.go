package main_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// One of two upstream servers is killed under load. The agent connects to the other one, and
// reports the unused address. No request is lost.
func TestUpstream_MovesToAnotherAddress(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	r.WriteFile("istio.d/web.yaml", r.WebServiceYAML(r.Ports.Backend))
	servers := map[string]*parts.Process{}
	var addresses []string
	for range 2 {
		address := fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))
		addresses = append(addresses, address)
		servers[address] = parts.StartProcess(t, parts.Discoveryd{
			MeshFolder: filepath.Join(r.Dir, "istio.d"), Plaintext: address}.Command(t))
	}
	r.SetTOML(fmt.Sprintf("[discovery]\naddress = [%q, %q]\nauth = \"none\"\n", addresses[0],
		addresses[1]))
	daemon := r.StartReady()
	connected := func(other string) api.Discovery {
		t.Helper()
		var status api.Status
		rig.Eventually(t, time.Minute, "the agent is connected", func() bool {
			r.RunOutriderJSON(&status, "status", "--json")
			return status.Discovery.State == "connected" && status.Discovery.Address != other
		})
		if len(status.Conditions) > 0 {
			t.Errorf("conditions %+v", status.Conditions)
		}
		return status.Discovery
	}
	used := connected("").Address
	load := r.StartLoad(0.2)
	servers[used].Kill()
	now := connected(used)
	if len(now.Unused) != 1 || now.Unused[0].Address != used || now.Unused[0].Error == "" {
		t.Errorf("discovery %+v", now)
	}
	if out := r.RunOutrider("status").Stdout; !strings.Contains(out, "connected "+now.Address) ||
		!strings.Contains(out, "not in use "+used+": ") {
		t.Errorf("outrider status:\n%s", out)
	}
	parts.EventuallyWithObservation(t, time.Minute, "the move is logged", func() (bool, string) {
		text := daemon.Output()
		return strings.Contains(text, "moved to another upstream server"), text
	})
	if text := daemon.Output(); strings.Contains(text, "no connection to the upstream server") {
		t.Errorf("journal:\n%s", text)
	}
	if report := load.Stop(); report.Lost > 0 {
		t.Errorf("%d of %d requests were lost: %+v", report.Lost, report.Total, report.Classes)
	}
}
