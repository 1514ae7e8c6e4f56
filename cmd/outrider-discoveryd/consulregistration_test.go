package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/consul"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source/sourcetest"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/catalog"
)

// vmService is a ServiceEntry that selects the workloads of the WorkloadGroup, on another port than
// that of their service in Consul.
const vmService = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: vm}
spec:
  hosts: [web.test]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: web}}
`

// consulRegistrations are two servers that register workloads in one Consul.
type consulRegistrations struct {
	consul   *catalog.Consul
	token    string
	one, two registrar
	seen     *sourcetest.Receiver // what a third client of the same Consul, a registry, delivers
}

const vmInput = "consul:WorkloadEntry/vm/" + vmEntry

// TestRegistration_Consul runs two servers that register workloads in Consul, with WorkloadGroups
// in files and join tokens.
func TestRegistration_Consul(t *testing.T) {
	t.Parallel()
	folder := parts.ShortDir(t)
	key := pkitest.NewKey(t)
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(folder, name) }
	write(t, at("join.key"), string(pkitest.KeyPEM(t, key)))
	write(t, at("join.pub"), string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY",
		Bytes: public})))
	write(t, at("mesh.yaml"), vmGroup+"---\n"+vmService)
	token, about, err := command("token", "--service-account", "vm/web", "--key", at("join.key"))
	if err != nil {
		t.Fatalf("%v: %s", err, about)
	}
	r := &consulRegistrations{consul: catalog.Start(t, catalog.Options{}),
		token: strings.TrimSpace(token), seen: &sourcetest.Receiver{}}
	registry, err := consul.New(consul.Options{Name: "consul", Address: r.consul.Address,
		Sink: r.seen.AcceptUpdate, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, func(ctx context.Context) error { return registry.Run(ctx) })
	tables := fmt.Sprintf("store = \"consul\"\n[auth]\njoin_key_file = %q\n[[source]]\n"+
		"type = \"files\"\npaths = [%q]\n[[registry]]\ntype = \"consul\"\naddress = %q\n",
		at("join.pub"), at("mesh.yaml"), r.consul.Address)
	r.one, r.two = startRegistrar(t, tables), startRegistrar(t, tables)
	t.Run("moves", r.testMoves)
	t.Run("Consul loses its data", func(inner *testing.T) {
		r.testLoss(inner, func() { r.consul = r.consul.Restart(t) })
	})
	t.Run("dead server", r.testDeadServer)
}

// entry waits until the WorkloadEntry vmEntry contains a text; "" waits for its removal.
func (r *consulRegistrations) entry(t *testing.T, text string) {
	t.Helper()
	parts.EventuallyWithObservation(t, time.Minute, "the entry: "+text, func() (bool, string) {
		got := r.seen.Text(vmInput)
		return (got == "") == (text == "") && strings.Contains(got, text), got
	})
}

// status returns the states of the workload's checks as the HTTP API of Consul reports them.
func (r *consulRegistrations) status(t *testing.T) string {
	t.Helper()
	var all []struct{ Checks []struct{ Status string } }
	r.consul.Do(t, http.MethodGet, "/v1/health/service/web", nil, &all)
	var found []string
	for _, one := range all {
		for _, check := range one.Checks {
			found = append(found, check.Status)
		}
	}
	return strings.Join(found, " ")
}

// watch observes the WorkloadEntry vmEntry until missing is called. missing reports whether the
// entry was absent at any time.
func (r *consulRegistrations) watch() (missing func() bool) {
	ended := make(chan struct{})
	var group sync.WaitGroup
	lost := false
	group.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			if r.seen.Text(vmInput) == "" {
				lost = true
			}
			select {
			case <-ended:
				return
			case <-tick.C:
			}
		}
	})
	return func() bool { close(ended); group.Wait(); return lost }
}

// testMoves moves a workload between the servers while its health changes: its entry is never
// removed before the last stream ends.
func (r *consulRegistrations) testMoves(t *testing.T) {
	web := newVM(t, r.token, nil)
	s := web.connect(r.one.address)
	r.entry(t, `"app":"web"`)
	if got := r.status(t); got != "critical" {
		t.Errorf("without a report other users of Consul see %q", got)
	}
	missing := r.watch()
	for i := range 10 {
		problem, want, status := "", `"status":"True"`, "passing"
		if i%4 == 1 {
			problem, want, status = "exit status 1", `"status":"False"`, "critical"
		}
		s.report(problem)
		r.entry(t, want)
		parts.EventuallyWithObservation(t, time.Minute, "the check is "+status, func() (bool, string) {
			got := r.status(t)
			return got == status, got
		})
		address := []string{r.two.address, r.one.address}[i%2]
		if i%4 < 2 { // alternates between a new stream before and after the end of the old one
			next := web.connect(address)
			s.end()
			s = next
		} else {
			s.end()
			s = web.connect(address)
		}
	}
	<-time.After(vmGrace + 2*time.Second) // a removal would happen within the grace period
	if missing() {
		t.Error("the entry was removed")
	}
	begun := time.Now()
	s.end()
	r.entry(t, "")
	t.Logf("removed %v after the end of the stream", time.Since(begun))
	parts.Eventually(t, time.Minute, "the instance is removed", func() bool {
		return r.status(t) == ""
	})
}

// testLoss replaces Consul by an empty one. The registries retain the workload's entry, and the
// server of the workload registers it again.
func (r *consulRegistrations) testLoss(t *testing.T, replace func()) {
	web := newVM(t, r.token, nil)
	s := web.connect(r.one.address)
	s.report("")
	r.entry(t, `"status":"True"`)
	missing := r.watch()
	replace()
	parts.EventuallyWithObservation(t, time.Minute, "the workload is registered again", func() (bool, string) {
		got := r.status(t)
		return got == "passing", got
	})
	<-time.After(vmGrace + 2*time.Second) // a removal would happen within the grace period
	if missing() {
		t.Error("the entry was removed")
	}
	s.end()
	r.entry(t, "")
}

// testDeadServer kills a server, and ends a workload that was connected to it, at the same moment:
// the other server removes the workload's entry after the grace period. The entry of a workload
// that moves to the other server remains.
func (r *consulRegistrations) testDeadServer(t *testing.T) {
	s := newVM(t, r.token, nil).connect(r.one.address)
	moving := newVM(t, r.token, map[string]any{"INSTANCE_IPS": "10.9.9.20"})
	moving.connect(r.one.address)
	r.entry(t, `"app":"web"`)
	begun := time.Now()
	if err := syscall.Kill(r.one.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.end()
	moving.connect(r.two.address)
	r.entry(t, "")
	took := time.Since(begun)
	t.Logf("removed %v after server and workload were killed", took)
	if took < vmGrace-time.Second {
		t.Errorf("removed after %v, with a grace period of %v", took, vmGrace)
	}
	if got := r.seen.Text("consul:WorkloadEntry/vm/web-10.9.9.20"); got == "" {
		t.Error("the entry of the workload that moved was removed")
	}
	// the initial state: the workload has not reported its health
	if got := r.status(t); got != "critical" {
		t.Errorf("other users of Consul see %q", got)
	}
}
