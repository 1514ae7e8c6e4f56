package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"outrider.org/outrider/scripts/adsload"
	"outrider.org/outrider/scripts/parts"
)

// discoveryResult compares outrider-discoveryd with istiod: same files, same clients, one run.
type discoveryResult struct {
	Rows    []*discoveryRow `json:"rows"`
	Sustain *sustainResult  `json:"sustain"`
}

// discoveryRow is the result of one server with a number of services of five endpoints.
type discoveryRow struct {
	Server   string `json:"server"`
	Services int    `json:"services"`

	Ready          time.Duration `json:"start_ns"` // from exec to listening, all files read
	StartProcessor time.Duration `json:"start_processor_ns"`
	StartRSS       int           `json:"start_rss_bytes"` // after 3 s without clients
	One            time.Duration `json:"one_client_full_ns"`

	Clients          int           `json:"clients"`
	Connect          time.Duration `json:"clients_full_ns"`
	ConnectProcessor time.Duration `json:"clients_processor_ns"`
	Peak             int           `json:"peak_rss_bytes"`

	// Change is the median time from a change of one endpoint's file until the last client has it,
	// without debounce times.
	Change          time.Duration `json:"change_ns"`
	ChangeProcessor time.Duration `json:"change_processor_ns"`
}

// Targets, for 5,000 services unless noted.
const (
	mostChange           = 20 * time.Millisecond
	mostChangeProcessor  = 10 * time.Millisecond
	mostConnect          = 2 * time.Second
	mostConnectProcessor = 2 * time.Second
	mostPeak             = 300 << 20
	mostOne              = 30 * time.Millisecond // 1,000 services
	mostStart            = time.Second
	mostStartRSS         = 120 << 20
)

// compareDiscovery measures outrider-discoveryd and istiod.
func compareDiscovery(t *stage, s settings) any {
	result := &discoveryResult{}
	changes := map[int]time.Duration{}
	for _, services := range s.sizes() {
		for _, name := range []string{"outrider", "istiod"} {
			row := discoveryOnce(t, s, name, services)
			result.Rows = append(result.Rows, row)
			fmt.Printf("%-8s %4d services: start %s (%s, %d MB); 1 client %s; %d clients %s (%s, "+
				"peak %d MB); change %s (%s)\n", name, services,
				millis(row.Ready), millis(row.StartProcessor), row.StartRSS>>20, millis(row.One),
				row.Clients, millis(row.Connect),
				millis(row.ConnectProcessor), row.Peak>>20, millis(row.Change),
				millis(row.ChangeProcessor))
			if name == "outrider" {
				changes[services] = row.ChangeProcessor
				row.compareTargets(t, s)
			}
		}
	}
	if few, many := changes[100], changes[5000]; few > 0 && many > 0 {
		t.target(s, many <= 2*few+time.Millisecond,
			"a change costs %s at 5,000 services and %s at 100", millis(many), millis(few))
	}
	result.Sustain = sustain(t, s)
	return result
}

func (s settings) sizes() []int {
	if s.failOnMiss {
		return []int{100, 1000, 5000}
	}
	return []int{100}
}

func (r *discoveryRow) compareTargets(t *stage, s settings) {
	t.target(s, r.Services != 1000 || r.One <= mostOne,
		"one client of 1,000 services is full after %s", millis(r.One))
	if r.Services != 5000 {
		return
	}
	t.target(s, r.Change <= mostChange, "a change is at the last client after %s", millis(r.Change))
	t.target(s, r.ChangeProcessor <= mostChangeProcessor, "a change costs %s of a processor",
		millis(r.ChangeProcessor))
	t.target(s, r.Connect <= mostConnect, "%d clients are full after %s", r.Clients,
		millis(r.Connect))
	t.target(s, r.ConnectProcessor <= mostConnectProcessor, "%d clients cost %s of a processor",
		r.Clients, millis(r.ConnectProcessor))
	t.target(s, r.Peak <= mostPeak, "peak of %d MB", r.Peak>>20)
	t.target(s, r.Ready <= mostStart, "start after %s", millis(r.Ready))
	t.target(s, r.StartRSS <= mostStartRSS, "%d MB after the start", r.StartRSS>>20)
}

// afterConnect is a pause before changes are measured, in which the server processes the ACKs and
// collects the garbage of the connecting phase.
const afterConnect = 3 * time.Second

// discoveryOnce measures one server with one set of files.
func discoveryOnce(t *stage, s settings, name string, services int) *discoveryRow {
	folder := writeServices(t, services)
	server := startServer(t, name, folder)
	defer server.stop()
	row := &discoveryRow{Server: name, Services: services, Clients: s.clients, Ready: server.ready}
	time.Sleep(3 * time.Second)
	row.StartProcessor, row.StartRSS = server.processor(t),
		memory(t, server.process.Process.Pid).RSS

	row.One, _ = connect(t, server, 1, func(*adsload.Load) {})
	// minimum of five, because in the first one the server also translates and encodes everything
	for range 4 {
		one, _ := connect(t, server, 1, func(*adsload.Load) {})
		row.One = min(row.One, one)
	}
	row.Connect, row.ConnectProcessor = connect(t, server, s.clients, func(load *adsload.Load) {
		time.Sleep(afterConnect)
		before := server.processor(t)
		var took []time.Duration
		for i := range s.changes {
			took = append(took, change(t, load, folder, i)-server.debounce)
		}
		row.Change = median(took)
		row.ChangeProcessor = (server.processor(t) - before) / time.Duration(s.changes)
	})
	row.Peak = server.peak(t)
	return row
}

// connect connects clients at once, calls the function while once all have received everything, and
// disconnects them. It returns the total time and the server's processor time.
func connect(t *stage, server *discoveryServer, clients int, while func(*adsload.Load)) (took,
	processor time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	before, begun := server.processor(t), time.Now()
	load, err := adsload.Start(ctx, adsload.Options{Targets: []string{server.address},
		Clients: clients, Delta: true, SameNodeID: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := load.WaitInitialResources(ctx); err != nil {
		t.Fatal(err)
	}
	took, processor = time.Since(begun), server.processor(t)-before
	while(load)
	if err := load.Stop(); err != nil {
		t.Error(err)
	}
	return took, processor
}

// change moves one endpoint and returns the time until every client received it.
func change(t *stage, load *adsload.Load, folder string, i int) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	address := fmt.Sprintf("10.201.%d.%d", i>>8&255, i&255)
	mark := load.WatchContent(adsload.EndpointType, []byte(address))
	begun := time.Now()
	writeService(t, folder, 7, address)
	at, err := mark.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	last := begun
	for _, one := range at {
		if one.After(last) {
			last = one
		}
	}
	return last.Sub(begun)
}

func writeServices(t *stage, services int) string {
	t.Helper()
	folder := parts.ShortDir(t)
	for i := range services {
		writeService(t, folder, i, fmt.Sprintf("10.200.%d.4", i&255))
	}
	return folder
}

// writeService writes a ServiceEntry with five endpoints. last is the address of the last one.
func writeService(t *stage, folder string, i int, last string) {
	t.Helper()
	var text bytes.Buffer
	fmt.Fprintf(&text, `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: svc-%[1]d, namespace: ns}
spec:
  hosts: [svc-%[1]d.example.com]
  addresses: [10.%[2]d.%[3]d.%[4]d]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 80, name: http, protocol: HTTP}
  endpoints:
`, i, 1+i>>16, i>>8&255, i&255)
	for e := range 5 {
		address := fmt.Sprintf("10.200.%d.%d", i&255, e)
		if e == 4 {
			address = last
		}
		fmt.Fprintf(&text, "  - {address: %s, ports: {http: 8080}, labels: {version: v%d}}\n",
			address, e%2)
	}
	replaceFile(t, folder, fmt.Sprintf("svc-%d.yaml", i), text.String())
}

// replaceFile replaces a file atomically.
func replaceFile(t *stage, folder, name, text string) {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path+".tmp", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
}
