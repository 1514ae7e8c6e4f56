package epoch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/keeper"
	"outrider.org/outrider/scripts/parts"
)

// realRig is a supervisor with the real keeper and the real Envoy.
type realRig struct {
	*testing.T
	folder string
	binary string
	link   *epoch.KeeperLink
	board  *condition.Registry
	s      *epoch.Supervisor
	port   int
	leave  context.CancelFunc
	ended  chan error
}

func newReal(t *testing.T) *realRig {
	t.Helper()
	r := &realRig{T: t, folder: parts.ShortDir(t), binary: parts.EnvoyPath(t),
		board: condition.NewRegistry(),
		port:  parts.FreePort(t)}
	r.link = epoch.NewKeeperLink(epoch.KeeperLinkOptions{Logger: r.log(), EnvoyLog: r.log(),
		ForwardLog: true,
		Dialer: keeper.LaunchingDialer{Options: keeper.LaunchOptions{
			Folder: filepath.Join(r.folder, "keeper"), Binary: parts.CopyProgram(t, "outrider-keeper")}}})
	if err := r.link.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.leave()
		r.link.ShutdownKeeper()
	})
	r.begin()
	return r
}

func (r *realRig) log() *slog.Logger { return slog.New(slog.NewTextHandler(r.Output(), nil)) }

func (r *realRig) config() config.Envoy {
	return config.Envoy{ConfigDir: r.folder, RestartBackoffMin: time.Second,
		RestartBackoffMax: time.Minute, RestartLimit: 10, RestartWindow: 10 * time.Minute,
		TerminationDrainDuration: 200 * time.Millisecond, MaximumDrainDuration: 10 * time.Second}
}

// begin starts the supervisor of another agent with the same keeper.
func (r *realRig) begin() {
	ctx, cancel := context.WithCancel(context.Background())
	r.s = epoch.New(epoch.Options{Conditions: r.board, Config: r.config(),
		ExplainExit: envoy.ExplainExit,
		Logger:      r.log(),
		Admin:       func(address string) epoch.Admin { return r.link.Admin(address) }})
	r.link.SetSupervisor(r.s)
	r.ended = make(chan error, 1)
	var all sync.WaitGroup
	s, ended := r.s, r.ended
	all.Go(func() { _ = r.link.Run(ctx) })
	all.Go(func() { ended <- s.Run(ctx, r.link.Connection()) })
	r.leave = func() { cancel(); all.Wait() }
}

const bootstrapFormat = `{"admin": {"address": {"pipe": {"path": %q, "mode": 432}}}, "static_resources": {"listeners": [
{"name": "web", "address": {"socket_address": {"address": "127.0.0.1", "port_value": %d}}, "filter_chains": [{"filters": [
{"name": "http", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
"stat_prefix": "web", "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
{"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": %q}}}]}]},
"http_filters": [{"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}]}%s}`

func (r *realRig) spec(body string) *epoch.Spec {
	info := r.link.Connection().Info()
	path := func(l epoch.LaunchInput) string {
		return filepath.Join(info.Folder, fmt.Sprintf("admin-%d.sock", l.Number))
	}
	args := func(l epoch.LaunchInput) envoy.CommandLine {
		return envoy.CommandLine{ConfigFile: l.BootstrapPath, RestartEpoch: l.RestartEpoch,
			OutriderEpoch: l.Number,
			HotRestart:    l.HotRestart, BaseID: info.BaseIDOf(l.Lineage), SocketPath: info.SocketPath,
			DrainTime:          time.Second,
			ParentShutdownTime: 2 * time.Second, LogLevel: "warning", Concurrency: 1}
	}
	return &epoch.Spec{
		Digest: body, HotRestartVersion: "11.104", LiveTimeout: 20 * time.Second, DrainTime: time.Second, ParentShutdownTime: 2 * time.Second,
		AdminAddress: path,
		Bootstrap: func(l epoch.LaunchInput) ([]byte, error) {
			more := ""
			if strings.HasPrefix(body, "broken") {
				more = `, "no_such_field": 1`
			}
			port := r.port
			if strings.HasPrefix(body, "port") {
				port = 1 << 20
			}
			return fmt.Appendf(nil, bootstrapFormat, path(l), port, body, more), nil
		},
		Command: func(l epoch.LaunchInput) (epoch.Command, error) {
			return epoch.Command{Path: r.binary, Args: args(l).Args(nil)}, nil
		},
		ValidateCommand: func(l epoch.LaunchInput) (epoch.Command, error) {
			return epoch.Command{Path: r.binary, Args: args(l).ValidateArgs(nil)}, nil
		},
	}
}

func (r *realRig) must(spec *epoch.Spec, want epoch.Result) {
	r.Helper()
	got, err := r.s.Apply(r.Context(), epoch.Request{Spec: spec, Reason: "test"})
	if err != nil || got != want {
		r.Fatalf("apply %q: %+v, %v; should be %+v", spec.Digest, got, err, want)
	}
}

// phases returns the states of the running epochs, oldest first.
func (r *realRig) phases() string {
	var all []string
	for _, e := range r.s.Epochs() {
		if e.State != epoch.StateExited {
			all = append(all, fmt.Sprintf("%d %s", e.Number, e.State))
		}
	}
	return strings.Join(all, ", ")
}

func (r *realRig) settled(want string) {
	r.Helper()
	parts.Eventually(r, time.Minute, want, func() bool { return r.phases() == want })
}

// load sends requests, each on its own connection, until lost is called. lost returns the number of
// connections that were reset, and of those that failed otherwise.
func (r *realRig) load() (lost func() (reset, other int64)) {
	var failed, resets, sent atomic.Int64
	ctx, cancel := context.WithCancel(r.Context())
	client := &http.Client{Timeout: 5 * time.Second,
		Transport: &http.Transport{DisableKeepAlives: true}}
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for ctx.Err() == nil {
				response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/", r.port))
				if err == nil {
					_, err = io.Copy(io.Discard, response.Body)
					_ = response.Body.Close()
				}
				sent.Add(1)
				if errors.Is(err, syscall.ECONNRESET) {
					resets.Add(1)
				} else if err != nil {
					failed.Add(1)
				}
				if err != nil {
					r.Logf("lost at %s: %v", time.Now().Format("05.000"), err)
				}
				time.Sleep(5 * time.Millisecond) //house:sleep the rate of the load
			}
		})
	}
	return func() (int64, int64) {
		cancel()
		all.Wait()
		r.Logf("%d requests, %d reset, %d lost otherwise", sent.Load(), resets.Load(), failed.Load())
		return resets.Load(), failed.Load()
	}
}

func (r *realRig) live() epoch.Epoch {
	e, _, _ := r.s.Live()
	return e
}

func (r *realRig) lostNothing(lost func() (reset, other int64)) {
	r.Helper()
	if reset, other := lost(); reset+other != 0 {
		r.Errorf("lost: %d reset, %d otherwise", reset, other)
	}
}

func (r *realRig) stop() {
	r.Helper()
	err := r.s.Stop(r.Context(), r.config(), false)
	if ended := <-r.ended; err != nil || ended != nil {
		r.Errorf("stop: %v, run: %v", err, ended)
	}
	left, _ := filepath.Glob(filepath.Join(r.folder, "*.json"))
	shm, _ := filepath.Glob(fmt.Sprintf("/dev/shm/envoy_shared_memory_%d*", r.link.Connection().Info().BaseID))
	if len(left)+len(shm) != 0 {
		r.Errorf("left behind: %v %v", left, shm)
	}
}
