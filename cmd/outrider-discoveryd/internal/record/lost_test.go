package record

import (
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/recordfile"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
)

// careful is a fake source that implements the interface cautious: its stored objects stay in use
// although its list is empty.
type careful struct{ fake }

func (*careful) RemoveRetainedInputs() {}

func listOf(all bool, paths ...string) discovery.SourceUpdate {
	b := discovery.SourceUpdate{Source: "consul", Complete: all}
	for _, path := range paths {
		b.Inputs = append(b.Inputs, store.SourceInput{Path: path, Text: []byte("{}")})
	}
	return b
}

// TestRecorder_ListsThatLackAKindAfterAStart restarts a Recorder with stored inputs of two kinds, a
// and b. After each start, the source's list lacks a kind or is empty: the stored inputs of that
// kind stay in use. Finally the source changes one of them, and a reload removes the others.
func TestRecorder_ListsThatLackAKindAfterAStart(t *testing.T) {
	directory := t.TempDir()
	run := func(do func(r *Recorder), want ...string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			served := map[string]bool{}
			r := New(directory, func(b discovery.SourceUpdate) {
				if b.Complete {
					clear(served)
				}
				for _, in := range b.Inputs {
					if served[in.Path] = true; in.Text == nil {
						delete(served, in.Path)
					}
				}
			}, condition.NewRegistry(), slog.New(slog.DiscardHandler))
			r.SetSources([]source.Source{&careful{}})
			done := make(chan error, 1)
			go func() { done <- r.Run(t.Context()) }()
			do(r)
			if diff := cmp.Diff(want, slices.Sorted(maps.Keys(served))); diff != "" {
				t.Errorf("served (-want +got):\n%s", diff)
			}
			time.Sleep(time.Minute)
		})
	}
	all := []string{"consul:a/1", "consul:a/2", "consul:b/1", "consul:b/2"}
	run(func(r *Recorder) { r.AcceptUpdate(listOf(true, all...)) }, all...)
	run(func(r *Recorder) { r.AcceptUpdate(listOf(true, "consul:a/1")) },
		"consul:a/1", "consul:b/1", "consul:b/2")
	run(func(r *Recorder) {
		r.AcceptUpdate(listOf(true))
		if len(r.board.Conditions()) != 1 {
			t.Errorf("conditions: %v", r.board.Conditions())
		}
		r.AcceptUpdate(listOf(true, "consul:a/2")) // as after the source has reconnected
	}, "consul:a/2", "consul:b/1", "consul:b/2")
	run(func(r *Recorder) {
		r.AcceptUpdate(listOf(true))
		r.AcceptUpdate(discovery.SourceUpdate{Source: "consul",
			Inputs: []store.SourceInput{{Path: "consul:a/2"}}})
		r.AcceptUpdate(listOf(false, "consul:b/1"))
		r.RemoveRetainedInputs()
		if len(r.board.Conditions()) > 0 {
			t.Errorf("conditions after a reload: %v", r.board.Conditions())
		}
	}, "consul:b/1")
	run(func(r *Recorder) { r.AcceptUpdate(listOf(true, "consul:b/3")) }, "consul:b/3")
}

// TestRecorder_OnlyWholeStates reads a missing state, a state with a record that cannot be decoded,
// and an empty state. Only the empty state may be used.
func TestRecorder_OnlyWholeStates(t *testing.T) {
	directory := t.TempDir()
	r := New(directory, nil, condition.NewRegistry(), slog.New(slog.DiscardHandler))
	if _, known := r.stored("consul"); known {
		t.Error("without a file, there is a state")
	}
	for text, want := range map[byte]bool{textRecord: true, 'x': false} {
		records := slices.Values([]recordfile.Record{{Kind: text, Text: []byte("consul:a\x00{}")}})
		if err := format.Write(r.path("consul"), records); err != nil {
			t.Fatal(err)
		}
		if _, known := r.stored("consul"); known != want {
			t.Errorf("a record of kind %c: %t", text, known)
		}
	}
	empty := discovery.SourceUpdate{Source: "consul", Complete: true}
	cycle(t, directory, &empty)
	if inputs, known := r.stored("consul"); !known || len(inputs) > 0 {
		t.Errorf("an empty state: %v, %t", inputs, known)
	}
}

// After a start, a source lacks its stored inputs. The WorkloadEntry of a registered workload,
// which may have left, must not be served. A policy must be, whatever its annotations.
func TestRecorder_RegisteredWorkloadsDoNotStay(t *testing.T) {
	directory := t.TempDir()
	const registered = `{"metadata":{"annotations":{"istio.io/autoRegistrationGroup":"web"}}}`
	before := discovery.SourceUpdate{Source: "consul", Complete: true}
	for path, text := range map[string]string{"consul:WorkloadEntry/vm/web-10.0.0.1": registered,
		"consul:WorkloadEntry/vm/db": "{}", "consul:AuthorizationPolicy/vm/db": registered} {
		before.Inputs = append(before.Inputs, store.SourceInput{Path: path, Text: []byte(text)})
	}
	for i, b := range []discovery.SourceUpdate{before, {Source: "consul", Complete: true}} {
		synctest.Test(t, func(t *testing.T) {
			var served []string
			r := New(directory, func(b discovery.SourceUpdate) {
				for _, in := range b.Inputs {
					served = append(served, in.Path)
				}
			}, condition.NewRegistry(), slog.New(slog.DiscardHandler))
			r.SetSources([]source.Source{&careful{}})
			done := make(chan error, 1)
			go func() { done <- r.Run(t.Context()) }()
			r.AcceptUpdate(b)
			time.Sleep(time.Minute)
			want := []string{"consul:AuthorizationPolicy/vm/db", "consul:WorkloadEntry/vm/db"}
			if slices.Sort(served); i == 1 && !slices.Equal(served, want) {
				t.Errorf("served %v", served)
			}
		})
	}
}
