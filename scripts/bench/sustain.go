package main

import (
	"fmt"
	"time"

	"outrider.org/outrider/scripts/adsload"
	"outrider.org/outrider/scripts/parts"
)

// sustainResult is the result of a continuously changing mesh.
type sustainResult struct {
	Clients  int `json:"clients"`
	Services int `json:"services"`
	// Changes has times from writing a file until the last client received the change.
	Changes   []time.Duration `json:"changes_ns"`
	Worst     time.Duration   `json:"worst_ns"`
	RSS       []int           `json:"rss_bytes"` // measured every ten seconds
	Processor time.Duration   `json:"processor_ns"`
}

const (
	sustainServices = 1000
	changesASecond  = 10
	mostSustain     = time.Second
)

// sustain makes ten changes a second, with a debounce of 10 ms: the default of 100 ms would merge
// them.
func sustain(t *stage, s settings) *sustainResult {
	folder := writeServices(t, sustainServices)
	address := fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))
	server := &discoveryServer{address: address,
		process: parts.Discoveryd{MeshFolder: folder, Plaintext: address,
			ExtraConfig: "[push]\ndebounce_after = \"10ms\"\ndebounce_max = \"100ms\"\n"}.Command(t)}
	server.start(t)
	result := &sustainResult{Clients: 10 * s.clients, Services: sustainServices}
	connect(t, server, result.Clients, func(load *adsload.Load) {
		before := server.processor(t)
		tick := time.NewTicker(time.Second / changesASecond)
		defer tick.Stop()
		for i := range int(s.sustain.Seconds()) * changesASecond {
			<-tick.C
			took := change(t, load, folder, i)
			result.Changes = append(result.Changes, took)
			result.Worst = max(result.Worst, took)
			if i%(10*changesASecond) == 0 {
				result.RSS = append(result.RSS, memory(t, server.process.Process.Pid).RSS)
			}
		}
		result.Processor = server.processor(t) - before
		result.RSS = append(result.RSS, memory(t, server.process.Process.Pid).RSS)
	})
	// Ignore the first value: the heap grows until the first garbage collection.
	first, last := result.RSS[min(1, len(result.RSS)-1)], result.RSS[len(result.RSS)-1]
	fmt.Printf("%d clients, %d services, %d changes a second for %v: worst %s, %s of a processor "+
		"in all, %d MB after ten seconds, %d MB at last\n", result.Clients, result.Services,
		changesASecond, s.sustain, millis(result.Worst), millis(result.Processor), first>>20,
		last>>20)
	t.target(s, result.Worst <= mostSustain, "a change took %s", millis(result.Worst))
	t.target(s, last <= first+first/4, "the memory grew from %d MB to %d MB", first>>20, last>>20)
	return result
}
