package main

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/scripts/adsload"
)

// agentsResult is the cost of agents for an outrider-discoveryd. Each agent has its own connection
// with mutual TLS. When its server is killed, it connects to another one and sends the versions of
// the resources that it has.
type agentsResult struct {
	Services int `json:"services"`
	Agents   int `json:"agents"`
	// Intercepted means that the agents intercept connections. Each then has its own address.
	Intercepted bool `json:"intercepted"`

	PerAgent int `json:"memory_per_agent_bytes"` // resident memory of the server, per agent
	Resident int `json:"rss_bytes"`              // resident memory of the server, with all agents
	// Peak is the maximum resident memory of the server, reached while the agents connect.
	Peak             int           `json:"peak_rss_bytes"`
	Connect          time.Duration `json:"connected_ns"`
	ConnectProcessor time.Duration `json:"connected_processor_ns"` // processor time of the server
	ConnectClients   time.Duration `json:"connected_clients_processor_ns"`

	// Change is the median time until the last agent has a change, without the debounce time.
	Change          time.Duration `json:"change_ns"`
	ChangeProcessor time.Duration `json:"change_processor_ns"` // processor time of the server
	ChangeClients   time.Duration `json:"change_clients_processor_ns"`

	Move *moveResult `json:"move,omitempty"`
}

// moveResult is the result of killing the one of two servers that all agents use.
type moveResult struct {
	// Took is the time from kill -9 until the last agent has a response of the remaining server.
	Took      time.Duration `json:"moved_ns"`
	Processor time.Duration `json:"processor_ns"` // processor time of the remaining server
	Clients   time.Duration `json:"clients_processor_ns"`
	Resent    int           `json:"resources_resent"`
	Requests  int           `json:"requests"` // through the Envoys of two agents
	Lost      int           `json:"lost"`
	Bytes     int           `json:"bytes_of_responses_after_move"`
}

// Performance targets. Clients and server share one machine's CPUs, unlike in a fleet.
const (
	agentServices         = 1000
	mostPerAgent          = 150 << 10
	mostAgentChange       = 60 * time.Millisecond
	mostInterceptedChange = 200 * time.Millisecond
	mostMove              = 5 * time.Second
	connectedAgentTime    = 10 * time.Minute

	mostManyRSS        = 2 << 30
	mostManyChange     = time.Second
	longestAgentChange = time.Minute
)

// agents measures a fleet of ten times s.clients agents and 1,000 services, with and without
// interception. In the run without interception, two of the agents have Envoys.
func agents(t *stage, s settings) any {
	one := agentsRun{settings: s, stage: t, agents: 10 * s.clients, move: true}
	results := []*agentsResult{one.measure()}
	one.intercepted, one.move = true, false
	results = append(results, one.measure())
	for _, r := range results {
		most := mostAgentChange
		if r.Intercepted {
			most = mostInterceptedChange
		}
		t.target(s, r.PerAgent <= mostPerAgent, "%d KB per agent", r.PerAgent>>10)
		t.target(s, r.Change <= most, "a change is at the last agent after %s", millis(r.Change))
		if r.Move != nil {
			t.target(s, r.Move.Took <= mostMove, "all agents have moved after %s",
				millis(r.Move.Took))
			t.target(s, r.Move.Resent == 0, "%d resources were sent again", r.Move.Resent)
			t.target(s, r.Move.Lost == 0, "%d of %d requests were lost", r.Move.Lost,
				r.Move.Requests)
		}
	}
	return results
}

// thousands measures a hundred times s.clients agents and 1,000 services.
func thousands(t *stage, s settings) any {
	r := agentsRun{settings: s, stage: t, agents: 100 * s.clients, connecting: 500}.measure()
	t.target(s, r.Peak <= mostManyRSS, "%d agents need %d MB", r.Agents, r.Peak>>20)
	t.target(s, r.Change <= mostManyChange, "a change is at the last agent after %s",
		millis(r.Change))
	return r
}

// agentsRun is one size of a fleet.
type agentsRun struct {
	settings
	stage       *stage
	agents      int
	connecting  int // agents that connect at the same time; 0: all
	intercepted bool
	move        bool
}

func (r agentsRun) measure() *agentsResult {
	t := r.stage
	folder, secure := writeServices(t, agentServices), newAgentTLS(t)
	servers := []*discoveryServer{secure.start(t, folder), secure.start(t, folder)}
	if !r.move {
		servers[1].stop()
		servers = servers[:1]
	}
	var loaded []*realAgent
	if r.move {
		for _, name := range []string{"one", "two"} {
			loaded = append(loaded, secure.real(t, folder, name, servers))
		}
		if loaded[0].connected(t) != servers[0].address {
			slices.Reverse(servers) // kill ends the first server: make that the one in use
		}
	}
	result := &agentsResult{Services: agentServices, Agents: r.agents, Intercepted: r.intercepted}
	ctx, cancel := context.WithTimeout(context.Background(), connectedAgentTime)
	defer cancel()
	load := func(clients int, servers ...*discoveryServer) *adsload.Load {
		options := adsload.Options{AllAtFirstTarget: true, Clients: clients, Delta: true,
			SameNodeID: true,
			TLS:        secure.client, Node: r.node, MaxConnecting: r.connecting}
		for _, server := range servers {
			options.Targets = append(options.Targets, server.address)
		}
		running, err := adsload.Start(ctx, options)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := running.WaitInitialResources(ctx); err != nil {
			t.Fatal(err)
		}
		return running
	}
	// The first agent causes the translation; the others measure the cost per agent.
	for _, server := range servers {
		if err := load(1, server).Stop(); err != nil {
			t.Error(err)
		}
	}
	time.Sleep(afterConnect)
	before := memory(t, servers[0].process.Process.Pid).RSS
	clock := startClock(t, servers[0])
	running := load(r.agents, servers...)
	result.Connect, result.ConnectProcessor, result.ConnectClients = clock.stop(t)
	time.Sleep(afterConnect)
	result.Resident = memory(t, servers[0].process.Process.Pid).RSS
	result.PerAgent, result.Peak = (result.Resident-before)/r.agents, servers[0].peak(t)
	var took []time.Duration
	clock = startClock(t, servers[0])
	for i := range r.changes {
		took = append(took, change(t, running, folder, i)-servers[0].debounce)
	}
	_, server, clients := clock.stop(t)
	result.Change = median(took)
	n := time.Duration(r.changes)
	result.ChangeProcessor, result.ChangeClients = server/n, clients/n
	if r.move {
		time.Sleep(afterConnect)
		result.Move = r.kill(running, servers, loaded)
		// wait until the other server has sent a change to all agents
		change(t, running, folder, r.changes)
	}
	if err := running.Stop(); err != nil {
		t.Error(err)
	}
	servers[0].stop()
	fmt.Printf("%d agents (intercepted: %v), %d services: connected %s (server %s, clients %s of "+
		"a processor), resident %d MB, at most %d MB, %d KB per agent; change %s (server %s, "+
		"clients %s)\n", r.agents, r.intercepted, agentServices, millis(result.Connect),
		millis(result.ConnectProcessor), millis(result.ConnectClients), result.Resident>>20,
		result.Peak>>20, result.PerAgent>>10, millis(result.Change),
		millis(result.ChangeProcessor), millis(result.ChangeClients))
	if m := result.Move; m != nil {
		fmt.Printf("moved %s (server %s, clients %s), %d resources resent, %d bytes; %d of %d "+
			"requests lost\n", millis(m.Took), millis(m.Processor), millis(m.Clients), m.Resent,
			m.Bytes, m.Lost, m.Requests)
	}
	return result
}

// kill kills the first server and measures the move to the second, while two agents with Envoys
// carry the standard load.
func (r agentsRun) kill(running *adsload.Load, servers []*discoveryServer,
	loaded []*realAgent) *moveResult {
	t := r.stage
	for _, agent := range loaded {
		agent.begin(t, r.rate/float64(len(loaded)))
	}
	time.Sleep(afterConnect)
	result, received := &moveResult{}, running.Received()
	clock := startClock(t, servers[1])
	servers[0].stop()
	for running.ReconnectCount() < r.agents {
		if time.Since(clock.begun) > longestAgentChange {
			t.Fatalf("%d of %d agents have moved", running.ReconnectCount(), r.agents)
		}
		time.Sleep(time.Millisecond)
	}
	result.Took, result.Processor, result.Clients = clock.stop(t)
	time.Sleep(afterConnect)
	for _, agent := range loaded {
		if agent.connected(t) != servers[1].address {
			t.Errorf("agent %s has not moved", agent.name)
		}
		report := agent.load.Stop()
		result.Requests, result.Lost = result.Requests+report.Total, result.Lost+report.Lost
	}
	for typeURL, now := range running.Received() {
		result.Resent += now.Resources - received[typeURL].Resources
		result.Bytes += now.Bytes - received[typeURL].Bytes
	}
	return result
}

// node returns the node of an agent. With interception each agent has its own address, which is an
// endpoint of a service, so the agent serves a port of that service.
func (r agentsRun) node(i int) *corev3.Node {
	address, fields := "127.0.0.1", map[string]any{"NAMESPACE": "ns"}
	if r.intercepted {
		address = fmt.Sprintf("10.200.%d.%d", i&255, i>>8)
		fields["INTERCEPTION_MODE"] = "REDIRECT"
	}
	metadata, err := structpb.NewStruct(fields)
	if err != nil {
		r.stage.Fatal(err)
	}
	return &corev3.Node{Id: fmt.Sprintf("sidecar~%s~x%d.ns~ns.svc.cluster.local", address, i),
		Cluster: "adsload", Metadata: metadata}
}

// processorClock measures elapsed time and the processor time of a server and of this process.
type processorClock struct {
	begun           time.Time
	of              *discoveryServer
	server, clients time.Duration
}

func startClock(t *stage, server *discoveryServer) *processorClock {
	return &processorClock{time.Now(), server, server.processor(t), ownProcessor(t)}
}

func (c *processorClock) stop(t *stage) (took, server, clients time.Duration) {
	return time.Since(c.begun), c.of.processor(t) - c.server, ownProcessor(t) - c.clients
}

// ownProcessor returns the processor time of this process.
func ownProcessor(t *stage) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
