package agent

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/config"
)

func TestMeshWatch_ReportsContentNotModes(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	object, mesh := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "mesh.conf")
	for _, path := range []string{object, mesh} {
		if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := &config.Config{}
	c.Discovery.Files, c.Discovery.MeshConfigFile = []string{object}, mesh
	watcher, err := newMeshWatch(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{object, mesh} { // a change of the mode must not be reported
		if err := os.Chmod(path, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- watcher.Run(ctx) }()
	next := func(want string) {
		t.Helper()
		select {
		case told := <-watcher.Changes():
			if diff := cmp.Diff([]string{want}, told); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
		case <-time.After(30 * time.Second):
			t.Errorf("of %s nothing was told", want)
		}
	}
	for _, path := range []string{object, mesh} {
		if err := os.WriteFile(path, []byte("new"), 0o600); err != nil {
			t.Fatal(err)
		}
		next(path)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
