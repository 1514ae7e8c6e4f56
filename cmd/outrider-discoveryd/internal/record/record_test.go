package record

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source/sourcetest"
)

// fake is a source that delivers a batch, if any, and never connects.
type fake struct {
	deliver *discovery.SourceUpdate
	sink    source.Sink
}

func (*fake) Name() string          { return "consul" }
func (*fake) Status() source.Status { return source.Status{Err: errors.New("connection refused")} }
func (f *fake) Run(ctx context.Context) error {
	if f.deliver != nil {
		f.sink(*f.deliver)
	}
	<-ctx.Done()
	return nil
}

// cycle runs a Recorder with a source for more than a minute, so that its file is written. It
// returns the paths of the inputs that reach the next sink, and the time until the Recorder was
// ready.
func cycle(t *testing.T, directory string, deliver *discovery.SourceUpdate) (paths []string,
	waited time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := New(directory, func(b discovery.SourceUpdate) {
			for _, in := range b.Inputs {
				paths = append(paths, in.Path)
			}
		}, condition.NewRegistry(), slog.New(slog.DiscardHandler))
		s := &fake{deliver, r.AcceptUpdate}
		r.SetSources([]source.Source{s})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 2)
		started := time.Now()
		go func() { done <- s.Run(ctx) }()
		go func() { done <- r.Run(ctx) }()
		<-r.Ready()
		waited = time.Since(started)
		time.Sleep(time.Minute)
		cancel()
		<-done
		<-done
	})
	return paths, waited
}

func TestRecorder_RestoresTheLastState(t *testing.T) {
	directory := t.TempDir()
	entry := &object.Object{Key: object.Key{Kind: object.ServiceEntry, Namespace: "consul",
		Name: "service:web"}, APIVersion: "networking.istio.io/v1", File: "consul:web",
		Spec: &networking.ServiceEntry{Hosts: []string{"web.test"},
			Resolution: networking.ServiceEntry_STATIC,
			Ports:      []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
			Endpoints:  []*networking.WorkloadEntry{{Address: "10.0.0.1"}}}}
	want := []string{"consul:text", "consul:web"}
	paths, waited := cycle(t, directory, &discovery.SourceUpdate{Source: "consul", Complete: true,
		Inputs: []store.SourceInput{{Path: "consul:text", Text: []byte("{}")},
			{Path: "consul:web", Objects: []*object.Object{entry}}}})
	if diff := cmp.Diff(want, paths); diff != "" || waited >= startWait {
		t.Errorf("after %v: %s", waited, diff)
	}
	paths, waited = cycle(t, directory, nil)
	if diff := cmp.Diff(want, paths); diff != "" || waited < startWait {
		t.Errorf("without the source, after %v: %s", waited, diff)
	}
	file := filepath.Join(directory, "source-consul")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)/2]++
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if paths, _ = cycle(t, directory, nil); len(paths) > 0 {
		t.Errorf("a damaged state is delivered: %v", paths)
	}
}

// TestRecorder_WritesAgainAfterFailure creates the directory only after writing has failed for an
// hour. The state must be stored soon afterwards, although the source delivers no more batches.
func TestRecorder_WritesAgainAfterFailure(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "removed")
	synctest.Test(t, func(t *testing.T) {
		r := New(directory, func(discovery.SourceUpdate) {}, condition.NewRegistry(),
			slog.New(slog.DiscardHandler))
		sourcetest.Run(t, r.Run)
		r.AcceptUpdate(discovery.SourceUpdate{Source: "consul", Complete: true,
			Inputs: []store.SourceInput{{Path: "consul:text", Text: []byte("{}")}}})
		time.Sleep(time.Hour)
		if err := os.Mkdir(directory, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * retryDelay)
		if inputs, _ := r.stored("consul"); len(inputs) != 1 {
			t.Errorf("stored inputs: %v", inputs)
		}
	})
}

// delivering is a source that delivers a batch during each call of Status, and waits until the
// Recorder has accepted the batch. A real source may hold one lock for both operations.
type delivering struct {
	fake
	t *testing.T
}

func (d *delivering) Status() source.Status {
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.sink(discovery.SourceUpdate{Source: d.Name()})
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		d.t.Error("the recorder waits for the source's status and the source for the recorder")
	}
	return d.fake.Status()
}

func TestRecorder_ReadsStatusesWithoutItsLock(t *testing.T) {
	r := New(t.TempDir(), func(discovery.SourceUpdate) {}, condition.NewRegistry(),
		slog.New(slog.DiscardHandler))
	r.restore(&delivering{fake{sink: r.AcceptUpdate}, t})
}
