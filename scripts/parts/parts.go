// Package parts provides the real servers, such as Envoy and istiod, and the helpers that tests and
// benchmarks share.
package parts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// RepositoryRoot returns the root directory of the source tree. In programs built with -trimpath,
// the working directory must be inside the source tree, as it is in tests.
func RepositoryRoot() string {
	_, file, _, _ := runtime.Caller(0)
	if filepath.IsAbs(file) {
		return filepath.Dir(filepath.Dir(filepath.Dir(file)))
	}
	dir, err := os.Getwd()
	for err == nil && dir != "/" {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	panic("the working directory is not in the source tree")
}

var envoy = sync.OnceValues(func() (string, error) {
	out, err := exec.Command(filepath.Join(RepositoryRoot(), "scripts", "get-envoy")).Output()
	return strings.TrimSpace(string(out)), err
})

// EnvoyPath returns the path of a real Envoy. The first call downloads it.
func EnvoyPath(t testing.TB) string {
	t.Helper()
	path, err := envoy()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Fatalf("get Envoy: %v: %s", err, exit.Stderr)
		}
		t.Fatalf("get Envoy: %v", err)
	}
	return path
}

// ShortDir returns a temporary directory whose path is short enough for Unix sockets in it (108
// bytes). The directory is removed when the test ends.
func ShortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "or")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
