package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/adsload"
	"outrider.org/outrider/scripts/parts"
)

// agentsResult is what agents cost a discovery server: each has a connection with mutual TLS of its
// own, and moves to another server with the versions that it has.
type agentsResult struct {
	Services int `json:"services"`
	Agents   int `json:"agents"`

	PerAgent int           `json:"memory_per_agent_bytes"` // resident, of the server
	Resident int           `json:"rss_bytes"`
	Connect  time.Duration `json:"connected_ns"`
	Change   time.Duration `json:"change_ns"` // at the last one, median, without debounce

	Moved  time.Duration `json:"moved_ns"` // from kill -9 to the first response for the last agent
	Resent int           `json:"resources_resent"`
	Bytes  int           `json:"bytes_of_responses_after_move"`
}

// Targets.
const (
	agentServices      = 1000
	mostPerAgent       = 150 << 10
	mostAgentChange    = 60 * time.Millisecond
	mostMove           = 5 * time.Second
	connectedAgentTime = 5 * time.Minute
)

// agents measures one size of a fleet: s.clients agents and 1,000 services.
func agents(t *stage, s settings) any {
	programs := parts.ShortDir(t)
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", programs, "./scripts/adsserve")
	build.Dir = parts.Root()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build adsserve: %v: %s", err, out)
	}
	folder, secure := writeServices(t, agentServices), newAgentTLS(t)
	first, second := secure.start(t, folder, programs), secure.start(t, folder, programs)
	result := &agentsResult{Services: agentServices, Agents: s.clients}
	ctx, cancel := context.WithTimeout(context.Background(), connectedAgentTime)
	defer cancel()

	load := func(clients int, targets ...string) *adsload.Load {
		running, err := adsload.Start(ctx, adsload.Options{Targets: targets, First: true,
			Clients: clients, Delta: true, Same: true, TLS: secure.client})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := running.Full(ctx); err != nil {
			t.Fatal(err)
		}
		return running
	}
	// The first agent costs the translation; the others are counted.
	for _, server := range []*discoveryServer{first, second} {
		if err := load(1, server.address).Stop(); err != nil {
			t.Error(err)
		}
	}
	time.Sleep(afterConnect)
	before := memory(t, first.process.Process.Pid).RSS
	begun := time.Now()
	running := load(s.clients, first.address, second.address)
	result.Connect = time.Since(begun)
	time.Sleep(afterConnect)
	result.Resident = memory(t, first.process.Process.Pid).RSS
	result.PerAgent = (result.Resident - before) / s.clients
	var took []time.Duration
	for i := range s.changes {
		took = append(took, change(t, running, folder, i)-first.debounce)
	}
	result.Change = median(took)
	time.Sleep(afterConnect)

	received := running.Received()
	begun = time.Now()
	first.stop()
	for running.Moved() < s.clients {
		if time.Since(begun) > time.Minute {
			t.Fatalf("%d of %d agents have moved", running.Moved(), s.clients)
		}
		time.Sleep(time.Millisecond)
	}
	result.Moved = time.Since(begun)
	time.Sleep(afterConnect)
	for typeURL, now := range running.Received() {
		result.Resent += now.Resources - received[typeURL].Resources
		result.Bytes += now.Bytes - received[typeURL].Bytes
	}
	change(t, running, folder, s.changes) // at all of them, from the other server
	if err := running.Stop(); err != nil {
		t.Error(err)
	}
	fmt.Printf("%d agents, %d services: connected %s, resident %d MB, %d KB per agent; change %s; "+
		"moved %s, %d resources resent, %d bytes\n", s.clients, agentServices, millis(result.Connect),
		result.Resident>>20, result.PerAgent>>10, millis(result.Change), millis(result.Moved),
		result.Resent, result.Bytes)
	t.target(s, result.PerAgent <= mostPerAgent, "%d KB per agent", result.PerAgent>>10)
	t.target(s, result.Change <= mostAgentChange, "a change is at the last agent after %s",
		millis(result.Change))
	t.target(s, result.Moved <= mostMove, "all agents have moved after %s", millis(result.Moved))
	t.target(s, result.Resent == 0, "%d resources were sent again", result.Resent)
	return result
}

// agentTLS has the certificates of servers and agents.
type agentTLS struct {
	chain, key, roots string // files
	pair              tls.Certificate
	pool              *x509.CertPool
}

func newAgentTLS(t *stage) *agentTLS {
	root, folder := pkitest.NewAuthority(t, "root", nil), parts.ShortDir(t)
	chain, key := root.Issue(t, pkitest.Leaf("web", 24*time.Hour))
	a := &agentTLS{pool: x509.NewCertPool(), chain: filepath.Join(folder, "cert.pem"),
		key: filepath.Join(folder, "key.pem"), roots: filepath.Join(folder, "root.pem")}
	a.pool.AddCert(root.Certificate)
	for path, text := range map[string][]byte{a.chain: chain, a.key: key,
		a.roots: pkitest.PEM(root.Certificate)} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if a.pair, err = tls.X509KeyPair(chain, key); err != nil {
		t.Fatal(err)
	}
	return a
}

// client returns the configuration of an agent's connections.
func (a *agentTLS) client(int) *tls.Config {
	return &tls.Config{RootCAs: a.pool, Certificates: []tls.Certificate{a.pair},
		ServerName: "web.test"}
}

// start starts a discovery server with mutual TLS.
func (a *agentTLS) start(t *stage, folder, programs string) *discoveryServer {
	s := &discoveryServer{debounce: pushDebounce,
		address: fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))}
	s.process = exec.Command(filepath.Join(programs, "adsserve"), "-files", folder, "-listen",
		s.address, "-cert", a.chain, "-key", a.key, "-client-ca", a.roots)
	s.start(t)
	return s
}
