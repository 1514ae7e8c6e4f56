// Command bench measures the whole of Outrider with real Envoys: what a change of epoch costs
// callers, how long a start takes, what the idle agent needs, what each failure costs. It prints
// tables, and writes JSON and plots into a folder.
//
//	go run ./scripts/bench [-only NAME,...] [-quick] [-out docs/bench]
//	go run ./scripts/bench -replot    draws the plots again from the existing JSON
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// settings of all benchmarks.
type settings struct {
	out            string
	rate           float64 // rate of the load, relative to the standard load
	epochs         int
	drain          time.Duration // drain time in epoch benchmarks
	parentShutdown time.Duration
	runs           int // number of measured starts
	services       int // number of services in the mesh of measured starts
	rounds         int // repetitions of each fault
	faultDrain     time.Duration
	faultShutdown  time.Duration
	fault          string // the only fault to run
	kills          int
	reloads        int // number of reloads in a reload storm, one per second
	flood          time.Duration
	idle           time.Duration
	// clients is the number of clients of a discovery server. Benchmarks of agents use 10 and 100
	// times as many.
	clients    int
	changes    int           // number of changes of an endpoint
	sustain    time.Duration // duration of the continuously changing mesh
	failOnMiss bool          // a missed target fails the benchmark
}

// bench is one benchmark. Its result is written as JSON.
type bench struct {
	name string
	what string
	run  func(*stage, settings) any
}

var benches = []bench{
	{"epochs", "epochs in a row under the standard load", epochs},
	{"restart", "a change of epoch beside stopping and starting a plain Envoy: the signal that " +
		"systemctl restart sends, without systemd", restart},
	{"start", "exec of outriderd to ready, beside Envoy alone", start},
	{"idle", "what agent and keeper need when nothing happens", idle},
	{"flood", "Envoy at debug level, nobody to take its log", flood},
	{"discovery", "the embedded discovery server beside istiod", compareDiscovery},
	{"policies", "a change of one of 1,000 policies, beside istiod", comparePolicies},
	{"agents", "agents with TLS connections of their own: memory, a change, a server killed under load",
		agents},
	{"thousands", "10,000 agents: memory, a change", thousands},
	{"identity", "certificates from files over SDS, beside pilot-agent", identities},
	{"capture", "a new connection that is captured, beside one to Envoy directly", captured},
	{"dns", "the DNS proxy beside that of pilot-agent", proxies},
	{"relay", "what the relay adds to responses of an upstream server, beside pilot-agent", relays},
	{"fleet", "istiod configures Envoy: starts with it and without, a minute without it, memory",
		fleet},
	{"faults", "each failure, again and again", faults},
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == pusherCommand {
		fmt.Fprintln(os.Stderr, "bench:", servePushes(os.Args[2]))
		os.Exit(1)
	}
	var s settings
	only := flag.String("only", "", "run these `benches` alone: "+strings.Join(names(), ","))
	quick := flag.Bool("quick", false, "few and short runs, to see that everything works")
	flag.StringVar(&s.out, "out", filepath.Join(parts.RepositoryRoot(), "docs", "bench"),
		"`folder` of what is written")
	flag.Float64Var(&s.rate, "rate", 1, "`factor` on the standard load of 1800 requests/s")
	flag.IntVar(&s.epochs, "epochs", 20, "epochs in a row")
	flag.DurationVar(&s.drain, "drain", 5*time.Second, "drain_duration in the benches of epochs")
	flag.DurationVar(&s.parentShutdown, "parent-shutdown", 8*time.Second,
		"parent_shutdown_duration in the benches of epochs")
	flag.IntVar(&s.runs, "runs", 40, "starts of each kind: single ones differ by a third")
	flag.IntVar(&s.services, "services", 100, "services of a start")
	flag.IntVar(&s.rounds, "rounds", 10, "rounds of each fault")
	flag.StringVar(&s.fault, "fault", "", "only the fault of this `name`")
	flag.DurationVar(&s.faultDrain, "fault-drain", time.Second, "drain_duration of the faults")
	flag.DurationVar(&s.faultShutdown, "fault-parent-shutdown", 3*time.Second,
		"parent_shutdown_duration of the faults")
	flag.IntVar(&s.kills, "kills", 20, "kills of the agent at random moments")
	flag.IntVar(&s.reloads, "storm", 30, "reloads of a storm, which lasts as many seconds")
	flag.DurationVar(&s.flood, "flood", time.Minute, "how long nobody takes Envoy's log")
	flag.DurationVar(&s.idle, "idle", 10*time.Second, "how long nothing happens")
	flag.IntVar(&s.clients, "clients", 100,
		"clients of a discovery server; ten times as many of one that changes all the time")
	flag.IntVar(&s.changes, "changes", 20, "changes of an endpoint")
	flag.DurationVar(&s.sustain, "sustain", time.Minute,
		"how long a mesh changes ten times a second")
	again := flag.Bool("replot", false,
		"measure nothing: draw the plots anew from the JSON in -out")
	flag.Parse()
	if *again {
		if err := replot(s.out); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	s.failOnMiss = !*quick
	if *quick {
		hurry()
	}
	if !run(s, *only) {
		os.Exit(1)
	}
}

// hurry reduces all settings that were not specified on the command line.
func hurry() {
	selected := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { selected[f.Name] = true })
	for name, value := range map[string]string{"epochs": "2", "runs": "3", "rounds": "1",
		"kills": "4", "storm": "5", "drain": "1s",
		"parent-shutdown": "3s", "flood": "5s", "idle": "3s", "rate": "0.2", "clients": "10",
		"changes": "3", "sustain": "5s"} {
		if !selected[name] {
			if err := flag.Set(name, value); err != nil {
				panic(fmt.Sprintf("flag %s: %v", name, err)) // no flag of that name
			}
		}
	}
}

func names() []string {
	var all []string
	for _, b := range benches {
		all = append(all, b.name)
	}
	return all
}

// machine describes the environment of the figures.
type machine struct {
	Time  time.Time `json:"time"`
	Go    string    `json:"go"`
	CPUs  int       `json:"cpus"`
	CPU   string    `json:"cpu"`
	Load  string    `json:"load"` // /proc/loadavg before the benchmark
	Bench string    `json:"bench"`
}

func describeMachine(bench string) machine {
	m := machine{Time: time.Now().UTC().Truncate(time.Second), Go: runtime.Version(),
		CPUs: runtime.NumCPU(), Bench: bench}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load = strings.TrimSpace(string(text))
	}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, found := strings.Cut(string(text), "model name"); found {
			line, _, _ := strings.Cut(rest, "\n")
			m.CPU = strings.TrimLeft(line, "\t :")
		}
	}
	return m
}

// run runs the selected benchmarks. It continues after a failure, and reports whether all passed.
func run(s settings, only string) bool {
	chosen := names()
	if only != "" {
		chosen = strings.Split(only, ",")
	}
	defer rig.RemovePrograms()
	well := true
	for _, name := range chosen {
		i := slices.IndexFunc(benches, func(b bench) bool { return b.name == name })
		if i < 0 {
			fmt.Fprintf(os.Stderr, "bench: no bench %q: there are %s\n", name,
				strings.Join(names(), ", "))
			return false
		}
		b, m := benches[i], describeMachine(name)
		fmt.Printf("\n== %s: %s (load average %s)\n", b.name, b.what, m.Load)
		var result any
		ok := perform(b.name, func(t *stage) { result = b.run(t, s) })
		well = well && ok
		if result == nil {
			continue
		}
		if err := write(s.out, name+".json", struct {
			Machine machine `json:"machine"`
			OK      bool    `json:"ok"`
			Result  any     `json:"result"`
		}{m, ok, result}); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			well = false
		}
	}
	return well
}

func write(folder, name string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return writeText(folder, name, append(text, '\n'))
}

func writeText(folder, name string, text []byte) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, name), text, 0o644)
}
