package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
	"outrider.org/outrider/scripts/adsload"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/cluster"
)

const (
	// set for a child process; its value is "KUBECONFIG ADDRESS"
	serveVariable = "OUTRIDER_TEST_SERVE"
	debounce      = 100 * time.Millisecond
	fleetServices = 1000
	fleetEntries  = 5000
	fleetClients  = 100
	fleetChanges  = 100
)

// TestMain runs a discovery server instead of the tests if serveVariable is set: a test has started
// this process as a child.
func TestMain(m *testing.M) {
	if arguments := os.Getenv(serveVariable); arguments != "" {
		kubeconfig, address, _ := strings.Cut(arguments, " ")
		if err := serve(kubeconfig, address); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serve runs a discovery server with the objects and Services of an API server. It listens once
// both are complete.
func serve(kubeconfig, address string) error {
	server, err := discovery.New(discovery.Options{Sources: []string{"objects", "services"},
		Settings: discovery.Settings{DebounceAfter: debounce, DebounceMax: 10 * time.Second}})
	if err != nil {
		return err
	}
	var complete sync.WaitGroup
	complete.Add(2)
	sink := func(b discovery.SourceUpdate) {
		server.AcceptUpdate(b)
		if b.Complete {
			complete.Done()
		}
	}
	objects, err := NewSource(Options{Name: "objects", Kubeconfig: kubeconfig}, sink)
	if err != nil {
		return err
	}
	services, err := NewRegistry(Options{Name: "services", Kubeconfig: kubeconfig,
		Domain: "cluster.local"}, sink)
	if err != nil {
		return err
	}
	streams, err := xds.NewServer(xds.Options{Source: server})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(context.Background())
	for _, s := range []source.Source{objects, services} {
		group.Go(func() error { return s.Run(ctx) })
	}
	complete.Wait()
	group.Go(func() error { return server.Run(ctx) })
	<-server.Ready()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	group.Go(func() error { return streams.Serve(ctx, listener) })
	return group.Wait()
}

// TestFleetBesideIstiod measures the start of a discovery server and the change of one
// EndpointSlice, for this program and for istiod with the same API server.
func TestFleetBesideIstiod(t *testing.T) {
	if os.Getenv("OUTRIDER_TEST_FULL") == "" {
		return
	}
	c := cluster.Start(t)
	fill(fleetServices, func(i int) {
		c.Create(corePath+"default/services", fmt.Sprintf("metadata: {name: s%d}\n"+
			"spec: {clusterIP: 10.96.%d.%d, ports: [{name: http, port: 80}]}", i, 100+i>>8, i&255))
		createSlice(c, "default", fmt.Sprintf("s%d-x", i), fmt.Sprintf("s%d", i),
			v4("{name: http, port: 8080}", addresses(fmt.Sprintf("10.1.%d.%d", i>>8, i&255))))
	})
	own := ownServer(t, c)
	measureChanges(t, c, "outrider", own)
	own.kill()
	istiod := istiodServer(c)
	measureChanges(t, c, "istiod", istiod)
	istiod.kill()

	fill(fleetEntries, func(i int) {
		c.Create(networkingPath+"default/serviceentries",
			serviceEntry(fmt.Sprintf("e%d", i), fmt.Sprintf("e%d.example", i)))
	})
	for range 2 {
		for name, start := range map[string]func() fleetServer{
			"outrider": func() fleetServer { return ownServer(t, c) },
			"istiod":   func() fleetServer { return istiodServer(c) }} {
			begun := time.Now()
			s := start()
			connect(t, s, 1).stop()
			t.Logf("%s: first client served %s after exec, %s of a processor", name,
				time.Since(begun).Round(time.Millisecond), processor(t, s.pid))
			s.kill()
		}
	}
}

// fill calls create for 0 to n-1, with up to 16 concurrent calls.
func fill(n int, create func(i int)) {
	var group errgroup.Group
	group.SetLimit(16)
	for i := range n {
		group.Go(func() error { create(i); return nil })
	}
	_ = group.Wait()
}

// addresses returns the endpoints of an EndpointSlice as YAML: four fixed addresses, and last.
func addresses(last string) string {
	return "{addresses: [10.9.0.1]}, {addresses: [10.9.0.2]}, {addresses: [10.9.0.3]}, " +
		"{addresses: [10.9.0.4]}, {addresses: [" + last + "]}"
}

// fleetServer is a running discovery server: this program or istiod.
type fleetServer struct {
	address string
	pid     int
	kill    func()
}

func ownServer(t *testing.T, c *cluster.Cluster) fleetServer {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), serveVariable+"="+
		c.Kubeconfig(t, c.APIServerAddress(), "secret")+" "+address)
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	kill := sync.OnceFunc(func() { _ = command.Process.Kill(); _ = command.Wait() })
	t.Cleanup(kill)
	return fleetServer{address, command.Process.Pid, kill}
}

func istiodServer(c *cluster.Cluster) fleetServer {
	_, kill := c.StartIstiod("PILOT_MAX_REQUESTS_PER_SECOND=10000")
	return fleetServer{c.IstiodPlaintextAddress(), c.LastProgramPID(), kill}
}

// fleet is a number of xDS clients that have received all resources.
type fleet struct {
	*adsload.Load
	cancel context.CancelFunc
}

func (f fleet) stop() { _ = f.Stop(); f.cancel() }

// connect connects xDS clients, and waits until each has received all resources.
func connect(t *testing.T, s fleetServer, clients int) fleet {
	t.Helper()
	parts.Eventually(t, limit, "the server listens", func() bool {
		connection, err := net.Dial("tcp", s.address)
		if err == nil {
			_ = connection.Close()
		}
		return err == nil
	})
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	load, err := adsload.Start(ctx, adsload.Options{
		Targets: []string{s.address}, Clients: clients,
		Delta: true, SameNodeID: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := load.WaitInitialResources(ctx); err != nil {
		t.Fatal(err)
	}
	return fleet{load, cancel}
}

func measureChanges(t *testing.T, c *cluster.Cluster, name string, s fleetServer) {
	t.Helper()
	f := connect(t, s, fleetClients)
	defer f.stop()
	used := processor(t, s.pid)
	parts.Eventually(t, limit, "the server is idle", func() bool {
		timer := time.NewTimer(2 * time.Second)
		<-timer.C
		before := used
		used = processor(t, s.pid)
		return used-before <= 50*time.Millisecond
	})
	var took, written []time.Duration
	for i := range fleetChanges {
		address := fmt.Sprintf("10.%d.0.%d", 200+len(name), i)
		mark := f.WatchContent(adsload.EndpointType, []byte(address))
		begun := time.Now()
		c.MergePatch(slicePath+"default/endpointslices/s7-x",
			`{"endpoints": [{"addresses": ["10.9.0.1"]}, {"addresses": ["`+address+`"]}]}`)
		written = append(written, time.Since(begun))
		at, err := mark.Wait(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		took = append(took, slices.MaxFunc(at, time.Time.Compare).Sub(begun)-debounce)
	}
	slices.Sort(took)
	slices.Sort(written)
	t.Logf("%s: change at the last of %d clients after %s (median, without debounce), of which the "+
		"API server needs %s to write it; %s of a processor each", name, fleetClients,
		took[len(took)/2].Round(time.Microsecond), written[len(written)/2].Round(time.Microsecond),
		(processor(t, s.pid)-used)/fleetChanges)
}

// processor returns the CPU time of a process.
func processor(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		t.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
