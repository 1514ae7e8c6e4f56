package parts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// IstiodPath returns the path of a real istiod. The first call builds it, which takes minutes.
var IstiodPath = sync.OnceValues(func() (string, error) {
	out, err := exec.Command(filepath.Join(RepositoryRoot(), "scripts", "get-istiod")).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("get istiod: %w: %s", err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
})

// IstiodCommand returns a command that runs a real istiod with the YAML files in a folder and a
// MeshConfig, given as text. It writes its files into work. The ports on 127.0.0.1 are for xDS,
// HTTP and monitoring.
func IstiodCommand(folder, meshConfig, work string, ports [3]int) (*exec.Cmd, error) {
	path, err := IstiodPath()
	if err != nil {
		return nil, err
	}
	mesh := filepath.Join(work, "mesh.yaml")
	if err := os.WriteFile(mesh, []byte(meshConfig), 0o600); err != nil {
		return nil, fmt.Errorf("write istiod's MeshConfig: %w", err)
	}
	at := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
	command := exec.Command(path, "discovery", "--configDir", folder, "--registries=",
		"--meshConfig", mesh, "--networksConfig", filepath.Join(work, "none.yaml"),
		"--grpcAddr", at(ports[0]), "--secureGRPCAddr=", "--httpAddr", at(ports[1]), "--httpsAddr=",
		"--monitoringAddr", at(ports[2]), "--ctrlz_port", "0")
	command.Dir, command.Env = work, append(os.Environ(), istiodEnvironment...)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return command, nil
}

// istiodEnvironment contains environment variables for an istiod without Kubernetes, CA and
// injection. It serves Envoys that lack the filters of Istio's proxy, and does not limit the rate
// of new clients.
var istiodEnvironment = []string{"POD_NAMESPACE=istio-system", "POD_NAME=istiod-0",
	"SHARED_MESH_CONFIG=", "ENABLE_CA_SERVER=false", "PILOT_CERT_PROVIDER=none",
	"PILOT_ENABLE_GATEWAY_API=false", "ENABLE_DEBUG_ON_HTTP=true",
	"UNSAFE_ENABLE_ADMIN_ENDPOINTS=false", "PILOT_ENABLE_METADATA_EXCHANGE=false",
	"PILOT_ENABLE_ALPN_FILTER=false", "PILOT_MAX_REQUESTS_PER_SECOND=10000"}

// IstioSourceDir returns the directory of the module istio.io/istio from which istiod is built. It
// contains test data as well.
var IstioSourceDir = sync.OnceValues(func() (string, error) {
	folder := filepath.Join(RepositoryRoot(), "scripts", "parts", "istiod")
	for _, arguments := range [][]string{{"mod", "download", "istio.io/istio"},
		{"list", "-m", "-f", "{{.Dir}}", "istio.io/istio"}} {
		command := exec.Command("go", arguments...)
		command.Dir, command.Env = folder, append(os.Environ(), "GOFLAGS=-mod=readonly",
			"GOWORK=off")
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

// BuildIstio builds a program in the module from which istiod is built, and returns the program's
// path.
func BuildIstio(t testing.TB, pkg string) string {
	t.Helper()
	folder, module := ShortDir(t), filepath.Join(RepositoryRoot(), "scripts", "parts", "istiod")
	// The build uses copies, because it adds dependencies that istiod does not need.
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(module, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(folder, filepath.Base(pkg))
	build := exec.Command("go", "build", "-modfile", filepath.Join(folder, "go.mod"), "-tags",
		"agent,disable_pgv", "-ldflags", "-s -w", "-o", program, pkg)
	build.Dir = module
	build.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v: %s", pkg, err, out)
	}
	return program
}
