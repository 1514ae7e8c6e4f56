package capture

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Units that cannot be searched for do not end the capture of those that were found.
func TestHelper_KeepsUnitsAfterAFailedSearch(t *testing.T) {
	watch, err := newUnitWatch()
	if err != nil {
		t.Fatal(err)
	}
	watch.root = filepath.Join(t.TempDir(), "none")
	running := []Unit{{Name: "web.service"}}
	h := &helper{units: watch, running: running}
	h.log, h.Settings = t.Output(), &Settings{Units: []string{"web.service"}}
	if h.follow(); !slices.Equal(h.running, running) {
		t.Errorf("the units are %v", h.running)
	}
}

// A new image without readable settings does not keep rules that nobody watches.
func TestHelper_UpgradeWithoutStateWithdraws(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.startEnvoy()
	r.apply(captureAll)
	r.answers(10*time.Second, "15001")
	if err := os.Remove(filepath.Join(r.folder, "state.json")); err != nil {
		t.Fatal(err)
	}
	if err := r.helper.Process.Signal(unix.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	<-r.client.Done()
	r.answers(5*time.Second, "far 80")
	client, err := Dial(t.Context(), r.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if s, err := client.Status(t.Context()); err != nil || s.State != Off {
		t.Errorf("%+v, %v", s, err)
	}
}
