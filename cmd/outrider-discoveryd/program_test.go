package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// TestMain runs the program instead of the tests if OUTRIDER_DISCOVERYD is set, as in child
// processes that tests start.
func TestMain(m *testing.M) {
	if os.Getenv("OUTRIDER_DISCOVERYD") != "" {
		os.Exit(run(os.Args[1:]))
	}
	os.Exit(m.Run())
}

const bootstrap = `{
  "node": {"id": "sidecar~127.0.0.1~vm.shop~shop.svc.cluster.local", "cluster": "test", "metadata": {"NAMESPACE": "shop", "INTERCEPTION_MODE": "NONE"}},
  "admin": {"address": {"pipe": {"path": %q}}},
  "dynamic_resources": {
    "ads_config": {"api_type": "DELTA_GRPC", "transport_api_version": "V3", "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}]},
    "cds_config": {"ads": {}, "resource_api_version": "V3"}, "lds_config": {"ads": {}, "resource_api_version": "V3"}},
  "static_resources": {"clusters": [{"name": "xds", "type": "STATIC",
    "load_assignment": {"cluster_name": "xds", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": %d}}}}]}]},
    "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
      "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": {"http2_protocol_options": {}}}}}]}
}`

const service = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: shop}
spec:
  hosts: [%[1]s.test]
  addresses: [127.0.0.1]
  resolution: STATIC
  ports: [{number: %[2]d, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: %[3]d}}]
`

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// ask sends an HTTP request. It returns the status and the body, or 0 and the error.
func ask(method, url, token, body string) (int, string) {
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{Timeout: 10 * time.Second}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(text)
}

// start runs the program with a configuration file, and returns once the program is ready. ended
// receives the result of exec.Cmd.Wait.
func start(t *testing.T, file string, monitoring int) (program *exec.Cmd, ended <-chan error) {
	t.Helper()
	command := exec.Command(os.Args[0], "--config", file)
	command.Env = append(os.Environ(), "OUTRIDER_DISCOVERYD=1",
		"RUNTIME_DIRECTORY="+filepath.Dir(file))
	output, err := os.Create(file + ".log")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = output.Close() }()
	command.Stderr = output
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	end := make(chan error, 1)
	go func() { end <- command.Wait() }()
	t.Cleanup(func() {
		_ = command.Process.Kill()
		if t.Failed() {
			t.Log(logOf(file))
		}
	})
	parts.EventuallyWithObservation(t, time.Minute, "ready", func() (bool, string) {
		status, body := ask("GET", fmt.Sprintf("http://127.0.0.1:%d/ready", monitoring), "", "")
		return status == http.StatusOK, body
	})
	return command, end
}

// logOf returns the log of the program that runs with a configuration file.
func logOf(file string) string {
	text, err := os.ReadFile(file + ".log")
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// TestProgram_ServesEnvoyFromFilesAndMemory runs the program with a real Envoy, which serves a
// ServiceEntry from a file and one from the write API. The test then reloads the program, and stops
// it with SIGTERM.
func TestProgram_ServesEnvoyFromFilesAndMemory(t *testing.T) {
	directory := parts.ShortDir(t)
	xds, monitoring, api := parts.FreePort(t), parts.FreePort(t), parts.FreePort(t)
	backend := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "host "+r.Host) })}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = backend.Serve(listener) }()
	t.Cleanup(func() { _ = backend.Close() })
	target := listener.Addr().(*net.TCPAddr).Port
	first, second := parts.FreePort(t), parts.FreePort(t)
	mesh := filepath.Join(directory, "mesh")
	if err := os.Mkdir(mesh, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(mesh, "a.yaml"), fmt.Sprintf(service, "files", first, target))
	write(t, filepath.Join(directory, "token"), "secret\n")
	file := filepath.Join(directory, "discoveryd.toml")
	text := fmt.Sprintf(`[paths]
state_dir = "state"
[listen]
plaintext = "127.0.0.1:%d"
monitoring = "127.0.0.1:%d"
[push]
debounce_after = "10ms"
[[source]]
paths = ["mesh"]
[[source]]
type = "memory"
listen = "127.0.0.1:%d"
token_file = "token"
`, xds, monitoring, api)
	write(t, file, text)

	program, ended := start(t, file, monitoring)

	admin := filepath.Join(directory, "admin.sock")
	parts.StartEnvoy(t, admin, fmt.Sprintf(bootstrap, admin, xds))
	reaches := func(port int, host string) {
		t.Helper()
		parts.EventuallyWithObservation(t, time.Minute, host, func() (bool, string) {
			status, body := ask("GET", fmt.Sprintf("http://127.0.0.1:%d/", port), "", "")
			return status == http.StatusOK, body
		})
	}
	reaches(first, "files.test")
	if status, page := ask("GET", fmt.Sprintf("http://127.0.0.1:%d/debug/config", monitoring), "",
		""); status != http.StatusOK || !strings.Contains(page, `"name": "memory"`) &&
		!strings.Contains(page, `"name":"memory"`) {
		t.Errorf("/debug/config: %d %s", status, page)
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/objects/ServiceEntry/shop/memory", api)
	body := fmt.Sprintf(service, "memory", second, target)
	if status, why := ask("PUT", url, "wrong", body); status != http.StatusUnauthorized {
		t.Errorf("with a wrong token: %d %s", status, why)
	}
	if status, why := ask("PUT", url, "secret", strings.Replace(body, "STATIC", "STATISCH", 1)); status !=
		http.StatusUnprocessableEntity || !strings.Contains(why, "spec.resolution") {
		t.Errorf("an invalid object: %d %s", status, why)
	}
	if status, why := ask("PUT", url, "secret", body); status != http.StatusNoContent {
		t.Errorf("a valid object: %d %s", status, why)
	}
	reaches(second, "memory.test")

	write(t, file, strings.Replace(text, "debounce_after", "debounce_afther", 1))
	if err := program.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the program ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the program does not end")
	}
	check := exec.Command(os.Args[0], "--config", file, "--check")
	check.Env = program.Env
	said, err := check.CombinedOutput()
	want := file + ":7:1: push.debounce_afther: there is no such key; did you mean push.debounce_after?"
	if err == nil || !strings.Contains(string(said), want) {
		t.Errorf("--check said %s (%v), want %s", said, err, want)
	}
}
