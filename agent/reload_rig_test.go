package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/scripts/parts"
)

// reloads is a reloader under test, and implements its specSource, requester and effects.
type reloads struct {
	*reloader
	file string

	mu      sync.Mutex
	live    string // hash of the live epoch
	number  int
	enacted []string
	applied int
	wishes  []string      // hashes of the requested epochs, in order
	waiting int           // requested epochs without an outcome yet
	fail    error         // outcome of the next epoch
	hold    chan struct{} // blocks new epochs until closed
	hangs   chan struct{} // blocks name lookups until closed
	changed chan struct{} // result of Changed; nil: no change is reported

	// The following functions are replaced by tests.
	load    func() (*config.Loaded, error)
	build   func(ctx context.Context, loaded *config.Loaded, to listener) (*wanted, error)
	enact   func(won *prepared, step func(string))
	expect  func(ctx context.Context, id uint64, loaded *config.Loaded, files []string)
	release func(id uint64, refused bool)
	adjust  func()
	liveID  func() string
}

func (r *reloads) Load() (*config.Loaded, error) { return r.load() }

func (r *reloads) Check(context.Context, *config.Loaded) error { return nil }

func (r *reloads) Make(
	ctx context.Context, loaded *config.Loaded, to listener,
) (*wanted, error) {
	return r.build(ctx, loaded, to)
}

func (r *reloads) LostCertificates(context.Context) error { return nil }

func (r *reloads) Live() (epoch.Epoch, epoch.Admin, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return epoch.Epoch{ID: r.liveID(), SpecDigest: r.live, Number: r.number}, nil, r.number >= 0
}

func (r *reloads) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

func (r *reloads) Submit(request epoch.Request) func(context.Context) (epoch.Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	hold, fail := r.hold, r.fail
	r.waiting++
	r.wishes = append(r.wishes, request.Spec.Digest)
	return func(context.Context) (epoch.Result, error) { return r.serve(request, hold, fail) }
}

func (r *reloads) Expect(
	ctx context.Context, id uint64, loaded *config.Loaded, files []string,
) {
	r.expect(ctx, id, loaded, files)
}

func (r *reloads) Hold(uint64, *prepared) error { return nil }

func (r *reloads) Release(id uint64, refused bool) { r.release(id, refused) }

func (r *reloads) AdjustEpoch(_ context.Context, _ func(string)) { r.adjust() }

func (r *reloads) Enact(_ context.Context, _ *config.Loaded, won *prepared, step func(string)) {
	r.enact(won, step)
}

// resolve simulates the name lookups of a configuration.
func (r *reloads) resolve(ctx context.Context, loaded *config.Loaded, to listener) error {
	if loaded.Config.Telemetry.StatsdUDPAddress == "" {
		return nil
	}
	to.phase("looking up " + loaded.Config.Telemetry.StatsdUDPAddress)
	select {
	case <-r.hangs:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func newReloads(t *testing.T) *reloads {
	t.Helper()
	r := &reloads{file: filepath.Join(t.TempDir(), "outrider.toml"), live: "", number: -1}
	r.write(t, "")
	loaded, err := r.read()
	if err != nil {
		t.Fatal(err)
	}
	r.reloader = newReloader(r, r, r, condition.NewRegistry(), slog.New(slog.DiscardHandler),
		newReloadState(loaded))
	r.expect = func(context.Context, uint64, *config.Loaded, []string) {}
	r.release = func(uint64, bool) {}
	r.load, r.adjust, r.liveID = r.read, func() {}, func() string { return "" }
	r.build = func(ctx context.Context, loaded *config.Loaded, to listener) (*wanted, error) {
		if err := r.resolve(ctx, loaded, to); err != nil {
			return nil, err
		}
		if loaded.Config.Node.Network == "impossible" {
			return nil, errors.New("no bootstrap can be made of it")
		}
		return &wanted{spec: &epoch.Spec{Digest: loaded.Config.Envoy.ConnectTimeout.String()}}, nil
	}
	r.enact = func(won *prepared, _ func(string)) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.enacted = append(r.enacted, won.loaded.Config.Log.Level)
	}
	return r
}

// serve acts as the supervisor for a request: it makes the epoch live, or returns fail, once hold
// is closed.
func (r *reloads) serve(
	request epoch.Request, hold chan struct{}, fail error,
) (epoch.Result, error) {
	if hold != nil {
		<-hold
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting--
	if fail != nil {
		return epoch.Result{}, fail
	}
	previous := r.number
	if request.IfChanged && r.live == request.Spec.Digest {
		return epoch.Result{Epoch: r.number, Previous: r.number, Mode: epoch.NoNewEpoch}, nil
	}
	r.applied++
	r.number++
	r.live = request.Spec.Digest
	return epoch.Result{Epoch: r.number, Previous: previous, Mode: epoch.HotRestart}, nil
}

func (r *reloads) read() (*config.Loaded, error) {
	return config.Load(config.Options{Path: r.file, Environment: func(string) string { return "" }})
}

func (r *reloads) write(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(r.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// ask runs a reload and returns its result.
func (r *reloads) ask(t *testing.T, request reload) api.ReloadResult {
	t.Helper()
	result, err := r.do(t.Context(), &request)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// begin starts a reload that needs a change for a new epoch, and returns the channel of its result.
func (r *reloads) begin(t *testing.T, reason string) <-chan api.ReloadResult {
	t.Helper()
	return r.beginOf(t, &reload{reason: reason, ifChanged: true})
}

// beginOf starts a reload and returns the channel of its result.
func (r *reloads) beginOf(t *testing.T, request *reload) <-chan api.ReloadResult {
	t.Helper()
	outcome := make(chan api.ReloadResult, 1)
	go func() {
		result, _ := r.do(t.Context(), request)
		outcome <- result
	}()
	return outcome
}

// holdEpochs makes newly requested epochs wait until release is called.
func (r *reloads) holdEpochs() (release func()) {
	hold := make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold = hold
	return sync.OnceFunc(func() { close(hold) })
}

func (r *reloads) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// waits waits until a number of reloads wait for the supervisor.
func (r *reloads) waits(t *testing.T, number int) {
	t.Helper()
	parts.Eventually(t, time.Minute, fmt.Sprintf("%d reloads wait for the supervisor", number),
		func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.waiting == number
		})
}
