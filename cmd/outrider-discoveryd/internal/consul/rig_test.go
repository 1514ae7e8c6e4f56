package consul

import (
	"cmp"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source/sourcetest"
	"outrider.org/outrider/scripts/parts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit bounds the wait for a change. It is generous, for busy machines.
const limit = 30 * time.Second

// sink records the batches that a registry delivers.
type sink struct {
	sourcetest.Receiver
	t        testing.TB
	registry *Registry
}

// start runs a registry until the test ends, and returns its sink.
func start(t testing.TB, o Options, adjust ...func(*Registry)) *sink {
	t.Helper()
	s := &sink{t: t}
	o.Name, o.Sink, o.Logger = cmp.Or(o.Name,
		"consul"), s.AcceptUpdate, slog.New(slog.DiscardHandler)
	registry, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range adjust {
		change(registry)
	}
	s.registry = registry
	sourcetest.Run(t, registry.Run)
	return s
}

// entry returns the ServiceEntry that was delivered last for a path, nil if there is none.
func (s *sink) entry(path string) *networking.ServiceEntry {
	if in, _ := s.Input(path); len(in.Objects) == 1 {
		return in.Objects[0].Spec.(*networking.ServiceEntry)
	}
	return nil
}

func (s *sink) problem() string { return s.registry.Status().Problem }

func (s *sink) paths() string { return strings.Join(s.Paths(), " ") }

// addresses returns the endpoints of a service, each as ADDRESS or ADDRESS*WEIGHT, in the delivered
// order.
func (s *sink) addresses(path string) string {
	var found []string
	for _, e := range s.entry(path).GetEndpoints() {
		text := e.Address
		if e.Weight != 1 {
			text += "*" + string(rune('0'+e.Weight))
		}
		found = append(found, text)
	}
	return strings.Join(found, " ")
}

func (s *sink) awaitSynced() {
	s.t.Helper()
	s.await("the first batch", "true", func() string {
		if s.registry.Status().Synced {
			return "true"
		}
		return "false"
	})
}

// await waits until a function returns the wanted value.
func (s *sink) await(what, want string, value func() string) {
	s.t.Helper()
	parts.EventuallyWithObservation(s.t, limit, what+": "+want, func() (bool, string) {
		got := value()
		return got == want, got
	})
}

func (s *sink) awaitAddresses(path, want string) {
	s.t.Helper()
	s.await("endpoints of "+path, want, func() string { return s.addresses(path) })
}

// awaitError waits until the registry's status has an error that contains a text; "" means no
// error.
func (s *sink) awaitError(text string) {
	s.t.Helper()
	parts.EventuallyWithObservation(s.t, limit, "error "+text, func() (bool, string) {
		err := s.registry.Status().Err
		if err == nil {
			return text == "", "no error"
		}
		return text != "" && strings.Contains(err.Error(), text), err.Error()
	})
}

func write(t testing.TB, path, text string) {
	t.Helper()
	next := filepath.Join(filepath.Dir(path), "next")
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}
