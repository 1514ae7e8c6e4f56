package envoys

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestStore_SelectsByLink(t *testing.T) {
	i := installer(t)
	for _, version := range []string{"1.9.1", "1.40.0", "1.39.3"} {
		envoy := envoyOf(version)
		if _, err := i.InstallFile(t.Context(), file(t, envoy), sum(envoy)); err != nil {
			t.Fatal(err)
		}
	}
	s := i.Store
	installed, err := s.Installed()
	if diff := cmp.Diff([]string{"1.40.0", "1.39.3", "1.9.1"}, installed); diff != "" ||
		err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	for _, version := range []string{"", "1.9.1", "1.40.0", "", ""} {
		if err := s.Select(version); err != nil {
			t.Errorf("select %q: %v", version, err)
		}
		if got, err := s.Selected(); got != version || err != nil {
			t.Errorf("%q is selected, not %q (%v)", got, version, err)
		}
		if version == "" {
			continue
		}
		target, err := filepath.EvalSymlinks(s.Link)
		if err != nil || target != s.Path(version) {
			t.Errorf("the link leads to %s (%v)", target, err)
		}
	}
	if err := s.Select("1.40.0"); err != nil {
		t.Fatal(err)
	}
	err = s.Select("1.8.0")
	if err == nil || !strings.Contains(err.Error(), `run "outrider envoy install 1.8.0"`) {
		t.Errorf("got %v", err)
	}
	if got, err := s.Selected(); got != "1.40.0" || err != nil {
		t.Errorf("after a refusal %q is selected (%v)", got, err)
	}
}

func TestStore_OneChangeAtATime(t *testing.T) {
	i := installer(t)
	unlock, err := i.Store.Lock()
	if err != nil {
		t.Fatal(err)
	}
	envoy := envoyOf("1.2.3")
	if _, err := i.InstallFile(t.Context(), file(t, envoy), sum(envoy)); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	unlock()
	// A temporary folder of a killed installation must be removed by the next one.
	if err := os.MkdirAll(filepath.Join(i.Store.Folder, workPrefix+"7", "wheel"),
		0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := i.InstallFile(t.Context(), file(t, envoy), sum(envoy)); err != nil {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff([]string{"envoy-1.2.3"}, contents(t, i.Store)); diff != "" {
		t.Error(diff)
	}
}
