package xds

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/adsload"
)

// The clients of a benchmark run in another process, which executes this test binary again. So only
// the CPU time and memory of the server are measured.
const (
	benchTarget = "OUTRIDER_XDS_BENCH_TARGET"
	benchCount  = "OUTRIDER_XDS_BENCH_CLIENTS"
	benchDelta  = "OUTRIDER_XDS_BENCH_DELTA"
)

// benchClients connects the clients, and prints a line when all of them have all resources. Then it
// reads lines from standard input. Each line is the address of an endpoint; when the last client
// has received this address, it prints the time in nanoseconds since 1970.
func benchClients(target string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	clients, err := strconv.Atoi(os.Getenv(benchCount))
	if err != nil {
		return err
	}
	load, err := adsload.Start(ctx, adsload.Options{Targets: []string{target}, Clients: clients,
		Delta: os.Getenv(benchDelta) == "true", SameNodeID: true})
	if err != nil {
		return err
	}
	if _, err := load.WaitInitialResources(ctx); err != nil {
		return err
	}
	fmt.Println(time.Now().UnixNano())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		mark := load.WatchContent(adsload.EndpointType, lines.Bytes())
		fmt.Println("ready")
		at, err := mark.Wait(ctx)
		if err != nil {
			return err
		}
		last := at[0]
		for _, t := range at {
			if t.After(last) {
				last = t
			}
		}
		fmt.Println(last.UnixNano())
	}
	return load.Stop()
}

// loadProcess is the process in which the benchmark's clients run.
type loadProcess struct {
	b     *testing.B
	stdin io.WriteCloser
	lines *bufio.Scanner
	end   func()
}

func startLoad(b *testing.B, socket string, clients int, delta bool) *loadProcess {
	b.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), benchTarget+"=unix://"+socket,
		benchCount+"="+strconv.Itoa(clients), benchDelta+"="+strconv.FormatBool(delta))
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := command.Start(); err != nil {
		b.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		_ = stdin.Close()
		if err := command.Wait(); err != nil {
			b.Errorf("clients: %v", err)
		}
	})
	b.Cleanup(end)
	return &loadProcess{b, stdin, bufio.NewScanner(stdout), end}
}

func (p *loadProcess) line() string {
	p.b.Helper()
	if !p.lines.Scan() {
		p.b.Fatalf("the clients ended: %v", p.lines.Err())
	}
	return p.lines.Text()
}

func (p *loadProcess) time() time.Time {
	p.b.Helper()
	ns, err := strconv.ParseInt(p.line(), 10, 64)
	if err != nil {
		p.b.Fatal(err)
	}
	return time.Unix(0, ns)
}

// fleet returns resources for n services as istiod would send them: a cluster of 1 KB, endpoints of
// 0.5 KB and a virtual host for each service, all virtual hosts in one route configuration, and one
// listener.
func fleet(b testing.TB, n int) []*resource.Resource {
	var all []*resource.Resource
	vhosts := &routev3.RouteConfiguration{Name: "80"}
	for i := range n {
		name := fmt.Sprintf("outbound|80||service-%04d.ns.svc.cluster.local", i)
		c := edsCluster(name, time.Second)
		// adds as many bytes as metadata and filters have in istiod's clusters
		c.AltStatName = strings.Repeat("padding-", 100)
		all = append(all, encoded(b, name, c), encoded(b, name, fleetEndpoints(i, 0)))
		vhost := routes("80", name).VirtualHosts[0]
		vhost.Name, vhost.Domains = name, []string{name, name + ":80", fmt.Sprintf("service-%04d",
			i)}
		vhost.Routes[0].Name = strings.Repeat("padding-", 20)
		vhosts.VirtualHosts = append(vhosts.VirtualHosts, vhost)
	}
	return append(all, encoded(b, "80", vhosts), encoded(b, "0.0.0.0_80", httpListener(b,
		"0.0.0.0_80", 80, "80", "outbound")))
}

// fleetEndpoints returns five endpoints of service i. The address of the last one depends on
// generation.
func fleetEndpoints(i, generation int) *endpointv3.ClusterLoadAssignment {
	a := assignment(fmt.Sprintf("outbound|80||service-%04d.ns.svc.cluster.local", i), 1, 2, 3, 4, 5)
	a.Endpoints[0].LbEndpoints[4].GetEndpoint().Hostname = marker(i, generation)
	return a
}

func marker(i, generation int) string {
	return fmt.Sprintf("service-%d-generation-%d.", i,
		generation)
}

// cpu returns the CPU time of this process.
func cpu(b testing.TB) time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// memory returns a field of /proc/self/status in MB.
func memory(b testing.TB, field string) float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), field+":")
	kB, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		b.Fatal(err)
	}
	return kB / 1024
}

func modes(b *testing.B, run func(b *testing.B, delta bool)) {
	b.Run("delta", func(b *testing.B) { run(b, true) })
	b.Run("state", func(b *testing.B) { run(b, false) })
}

// BenchmarkConnect measures the time until clients that connect simultaneously have received all
// resources.
func BenchmarkConnect(b *testing.B) {
	for _, size := range []struct{ clients, services int }{{1, 1000}, {300, 1000}, {100, 5000},
		{1000, 1000}} {
		b.Run(fmt.Sprintf("%dx%d", size.clients, size.services), func(b *testing.B) {
			modes(b, func(b *testing.B, delta bool) {
				feed := resource.NewFeed()
				feed.Publish(resource.Change{Set: fleet(b, size.services)})
				for b.Loop() {
					debug.FreeOSMemory()
					resident := memory(b, "VmRSS")
					// resets VmHWM to the current size
					if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
						b.Fatal(err)
					}
					socket := socketPath(b)
					_, stop := serve(b, socket, Options{Source: oneFeed{feed}})
					used, begun := cpu(b), time.Now()
					load := startLoad(b, socket, size.clients, delta)
					full := load.time()
					b.ReportMetric(full.Sub(begun).Seconds(), "s/full")
					b.ReportMetric((cpu(b) - used).Seconds(), "cpu-s/full")
					b.ReportMetric(memory(b, "VmHWM"), "MB-peak")
					b.ReportMetric(memory(b, "VmHWM")-resident, "MB-more")
					debug.FreeOSMemory()
					b.ReportMetric(memory(b, "VmRSS")-resident, "MB-rest")
					load.end()
					stop()
				}
			})
		})
	}
}

// BenchmarkChange measures the time until the last client has received a changed endpoint.
func BenchmarkChange(b *testing.B) {
	for _, size := range []struct{ clients, services int }{{100, 100}, {100, 5000}, {1000, 1000}} {
		b.Run(fmt.Sprintf("%dx%d", size.clients, size.services), func(b *testing.B) {
			modes(b, func(b *testing.B, delta bool) {
				feed := resource.NewFeed()
				feed.Publish(resource.Change{Set: fleet(b, size.services)})
				socket := socketPath(b)
				serve(b, socket, Options{Source: oneFeed{feed}})
				measureChanges(b, feed, startLoad(b, socket, size.clients, delta))
			})
		})
	}
}

// measureChanges changes an endpoint repeatedly, and waits each time until the last client has
// received it.
func measureChanges(b *testing.B, feed *resource.Feed, load *loadProcess) {
	b.Helper()
	load.time()
	var took time.Duration
	used := cpu(b)
	generation := 0
	for b.Loop() {
		generation++
		if _, err := fmt.Fprintln(load.stdin, marker(7, generation)); err != nil {
			b.Fatal(err)
		}
		if got := load.line(); got != "ready" {
			b.Fatal(got)
		}
		changed := encoded(b, "outbound|80||service-0007.ns.svc.cluster.local",
			fleetEndpoints(7, generation))
		begun := time.Now()
		feed.Publish(resource.Change{Set: []*resource.Resource{changed}})
		took += load.time().Sub(begun)
	}
	b.ReportMetric(float64(took.Microseconds())/1000/float64(b.N), "ms/last-client")
	b.ReportMetric(float64((cpu(b)-used).Microseconds())/1000/float64(b.N), "cpu-ms/change")
}
