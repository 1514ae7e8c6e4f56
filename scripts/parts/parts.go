// Package parts finds the real servers that tests and benches run against.
package parts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// Root is the top of the source tree.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

var envoy = sync.OnceValues(func() (string, error) {
	out, err := exec.Command(filepath.Join(Root(), "scripts", "get-envoy")).Output()
	return strings.TrimSpace(string(out)), err
})

// Envoy is the path of the real Envoy, fetched if it is not there yet.
func Envoy(t testing.TB) string {
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

// Istiod is the path of the real istiod, built if it is not there yet, which takes minutes.
var Istiod = sync.OnceValues(func() (string, error) {
	out, err := exec.Command(filepath.Join(Root(), "scripts", "get-istiod")).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("get istiod: %w: %s", err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
})

// ShortDir is a temporary folder with a path short enough for Unix sockets (108 bytes), removed after the test.
func ShortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "or")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// IstiodEnvironment runs istiod without Kubernetes, authorities and injection, for an Envoy that has no filters of Istio's, and
// without a bound on how many clients connect at once.
var IstiodEnvironment = []string{"POD_NAMESPACE=istio-system", "POD_NAME=istiod-0", "SHARED_MESH_CONFIG=", "ENABLE_CA_SERVER=false", "PILOT_CERT_PROVIDER=none",
	"PILOT_ENABLE_GATEWAY_API=false", "ENABLE_DEBUG_ON_HTTP=true", "UNSAFE_ENABLE_ADMIN_ENDPOINTS=false", "PILOT_ENABLE_METADATA_EXCHANGE=false",
	"PILOT_ENABLE_ALPN_FILTER=false", "PILOT_MAX_REQUESTS_PER_SECOND=10000"}

// IstioSource is the folder of the module that istiod is built from: its test data.
var IstioSource = sync.OnceValues(func() (string, error) {
	folder := filepath.Join(Root(), "scripts", "parts", "istiod")
	for _, arguments := range [][]string{{"mod", "download", "istio.io/istio"}, {"list", "-m", "-f", "{{.Dir}}", "istio.io/istio"}} {
		command := exec.Command("go", arguments...)
		command.Dir, command.Env = folder, append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off")
		out, err := command.Output()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("get Istio's source: %w: %s", err, exit.Stderr)
		}
		if err != nil || arguments[0] == "list" {
			return strings.TrimSpace(string(out)), err
		}
	}
	return "", nil
})
