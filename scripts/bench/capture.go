package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/capture"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// captureResult has, by kind of connection, median times from connecting until the response was
// received and the connection closed.
type captureResult struct {
	Connections int           `json:"connections"` // number of connections of each kind
	Direct      time.Duration `json:"direct_ns"`   // connections to a port of Envoy
	Captured    time.Duration `json:"captured_ns"` // to another host, but redirected to Envoy
	// Excluded is like Captured, with 1,000 excluded ports and networks in the rules.
	Excluded time.Duration `json:"excluded_ns"`
}

const (
	benchEnvoyUser  = 2001
	benchDirectPort = 15080
	benchExclusions = 1000
	benchAtOnce     = 100 // consecutive connections of one kind
)

// captureListener answers each connection.
const captureListener = `
  - name: port%[1]d
    address: {socket_address: {address: 0.0.0.0, port_value: %[1]d}}
    filter_chains: [{filters: [{name: answer, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.direct_response.v3.Config,
      response: {inline_string: "here"}}}]}]`

// captured measures new connections through interception and, for comparison, direct ones to the
// same Envoy, in a network namespace of its own.
func captured(t *stage, s settings) any {
	runtime.LockOSThread() // never unlocked: the thread with the namespace ends with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("a network namespace needs root: %v", err)
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	other := parts.NewOtherHost(t)
	client := startCapture(t)
	plain := capture.Settings{Outbound: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}
	excluding := plain
	for i := range benchExclusions {
		excluding.ExcludeOutboundPorts = append(excluding.ExcludeOutboundPorts, uint16(20000+i))
		excluding.ExcludeOutbound = append(excluding.ExcludeOutbound,
			netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(i >> 8), byte(i), 0}), 24))
	}
	apply := func(settings capture.Settings) {
		parts.Eventually(t, time.Minute, "connections are captured", func() bool {
			status, err := client.Apply(context.Background(), settings)
			return err == nil && status.State == capture.StateOn
		})
	}
	direct := fmt.Sprintf("127.0.0.1:%d", benchDirectPort)
	far := net.JoinHostPort(other.Address, "80")
	var times [3][]time.Duration
	for range s.runs {
		apply(plain)
		times[0] = connections(t, times[0], direct)
		times[1] = connections(t, times[1], far)
		apply(excluding)
		times[2] = connections(t, times[2], far)
	}
	r := &captureResult{len(times[0]), median(times[0]), median(times[1]), median(times[2])}
	fmt.Printf("new connection, medians of %d: direct %v, captured %v (%+.1f %%), with %d excluded "+
		"ports and networks %v (%+.1f %%)\n", r.Connections, r.Direct, r.Captured,
		percent(r.Direct, r.Captured), benchExclusions, r.Excluded, percent(r.Captured, r.Excluded))
	t.target(s, percent(r.Direct, r.Captured) <= 10, "capture costs more than 10 %%")
	t.target(s, percent(r.Captured, r.Excluded) <= 5, "exclusions cost more than 5 %%")
	return r
}

func percent(from, to time.Duration) float64 { return 100 * (float64(to)/float64(from) - 1) }

// startCapture runs Envoy and outrider-capture and connects to the latter.
func startCapture(t *stage) *capture.Client {
	t.Helper()
	folder := parts.ShortDir(t)
	program, err := os.Open(parts.EnvoyPath(t)) // opened here: Envoy's user cannot enter the folder
	if err != nil {
		t.Fatal(err)
	}
	bootstrap := "static_resources:\n  listeners:"
	for _, port := range []int{capture.OutboundPort, capture.InboundPort, benchDirectPort} {
		bootstrap += fmt.Sprintf(captureListener, port)
	}
	envoy := exec.Command("/proc/self/fd/3", "--disable-hot-restart", "--concurrency", "2",
		"--config-yaml", bootstrap, "--log-level", "error")
	envoy.ExtraFiles = []*os.File{program}
	envoy.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: benchEnvoyUser,
		Gid: benchEnvoyUser}}
	socket := filepath.Join(folder, "capture.sock")
	helper := exec.Command(filepath.Join(rig.Build(t, false).Dir, "outrider-capture"), "-folder",
		folder, "-socket", socket, "-envoy-user", fmt.Sprint(benchEnvoyUser), "-agent-user", "2002")
	for _, command := range []*exec.Cmd{envoy, helper} {
		command.Stderr = os.Stderr
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = command.Process.Kill()
			_ = command.Wait()
		})
	}
	_ = program.Close()
	var client *capture.Client
	parts.Eventually(t, time.Minute, "outrider-capture answers", func() bool {
		client, err = capture.Dial(context.Background(), socket)
		return err == nil
	})
	t.Cleanup(client.Close)
	return client
}

// connections makes connections one after the other and appends their times.
func connections(t *stage, times []time.Duration, address string) []time.Duration {
	t.Helper()
	for range benchAtOnce {
		begun := time.Now()
		connection, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		_ = connection.SetDeadline(begun.Add(5 * time.Second))
		answer, err := io.ReadAll(connection)
		if err != nil || string(answer) != "here" {
			t.Fatalf("%s: %q, %v", address, answer, err)
		}
		times = append(times, time.Since(begun))
		_ = connection.Close()
	}
	return times
}
