package relay

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/backend"
	"outrider.org/outrider/scripts/parts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// istiod is a real istiod that reads a folder of YAML. It can be stopped and restarted on the same
// port.
type istiod struct {
	t       testing.TB
	folder  string
	ports   [3]int
	address string
	kill    func()
}

func startIstiod(t testing.TB) *istiod {
	t.Helper()
	i := &istiod{t: t, folder: t.TempDir()}
	for n := range i.ports {
		i.ports[n] = parts.FreePort(t)
	}
	i.address = fmt.Sprintf("127.0.0.1:%d", i.ports[0])
	i.start()
	return i
}

func (i *istiod) start() {
	i.t.Helper()
	i.kill = parts.StartIstiod(i.t, i.folder, "enableAutoMtls: false\n", i.ports)
}

// service writes a ServiceEntry with the host NAME.test, a port, and the port of a backend.
func (i *istiod) service(name string, port, backend int) {
	i.t.Helper()
	text := fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: shop}
spec:
  hosts: [%[1]s.test]
  resolution: STATIC
  ports: [{number: %[2]d, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: %[3]d}}]
`, name, port, backend)
	path := filepath.Join(i.folder, name+".yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		i.t.Fatal(err)
	}
}

func (i *istiod) remove(name string) {
	i.t.Helper()
	if err := os.Remove(filepath.Join(i.folder, name+".yaml")); err != nil {
		i.t.Fatal(err)
	}
}

// running is a relay that serves on a Unix socket.
type running struct {
	*Server
	socket string
	board  *condition.Registry
	log    parts.SyncBuffer
	stop   func()
}

func serverAt(addresses ...string) Upstream { return Upstream{Addresses: addresses} }

// startRelay starts a relay. cache is the path of its cache file, or "".
func startRelay(t testing.TB, upstream Upstream, cache string) *running {
	t.Helper()
	options := Options{Upstream: upstream, Conditions: condition.NewRegistry()}
	if cache != "" {
		options.Cache = OpenCache(cache, options.Conditions)
	}
	return startRelayWith(t, options)
}

func startRelayWith(t testing.TB, options Options) *running {
	t.Helper()
	if options.Conditions == nil {
		options.Conditions = condition.NewRegistry()
	}
	options.Upstream.ConnectTimeout = 5 * time.Second
	r := &running{socket: filepath.Join(parts.ShortDir(t), "xds.sock"), board: options.Conditions}
	options.Logger = slog.New(
		slog.NewTextHandler(&r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r.Server = New(options)
	r.modules.client, r.modules.pause = localClient, time.Millisecond
	r.modules.refetch = 100 * time.Millisecond
	listener, err := net.Listen("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		if err := r.Serve(ctx, listener); err != nil {
			t.Error(err)
		}
	})
	group.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	r.stop = sync.OnceFunc(func() { cancel(); group.Wait() })
	t.Cleanup(func() {
		r.stop()
		if t.Failed() {
			t.Log("relay: ", r.log.String())
		}
	})
	return r
}

func (r *running) condition(code string) string {
	for _, c := range r.board.Conditions() {
		if c.Code == code {
			return c.Sentence
		}
	}
	return ""
}

// bootstrap is the bootstrap of an Envoy with one ADS stream.
const bootstrap = `{
  "node": {"id": "sidecar~10.255.0.1~vm.shop~shop.svc.cluster.local", "cluster": "test", "metadata": {"NAMESPACE": "shop", "CLUSTER_ID": "Kubernetes", "INTERCEPTION_MODE": "NONE", "LABELS": {"app": "edge"}}},
  "admin": {"address": {"pipe": {"path": %[1]q}}},
  "dynamic_resources": {
    "ads_config": {"api_type": %[3]q, "transport_api_version": "V3", "set_node_on_first_message_only": true, "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}]},
    "cds_config": {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"},
    "lds_config": {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
  },
  "static_resources": {"clusters": [{
    "name": "xds-grpc", "type": "STATIC", "connect_timeout": "1s",
    "load_assignment": {"cluster_name": "xds-grpc", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"pipe": {"path": %[2]q}}}}]}]},
    "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
      "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": {"http2_protocol_options": {}}}}
  }]}
}`

// startEnvoy starts an Envoy that receives its resources from a Unix socket.
func startEnvoy(t testing.TB, socket string, delta bool) *parts.EnvoyProcess {
	t.Helper()
	admin := filepath.Join(parts.ShortDir(t), "admin.sock")
	kind := "GRPC"
	if delta {
		kind = "DELTA_GRPC"
	}
	return parts.StartEnvoy(t, admin, fmt.Sprintf(bootstrap, admin, socket, kind))
}

// startBackend starts an HTTP server that answers with its name, and returns its port.
func startBackend(t testing.TB, name string) int {
	t.Helper()
	b, err := backend.Start(backend.Config{Name: name, HTTP: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	_, port, err := net.SplitHostPort(b.HTTPAddress())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return number
}

// ask sends a request for a host to a port of Envoy. It returns the body of the response, or the
// text of the error.
func ask(port int, host string) string {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true},
		Timeout: 5 * time.Second}
	request, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), nil)
	if err != nil {
		return err.Error()
	}
	request.Host = host
	response, err := client.Do(request)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", response.StatusCode, body)
}

// answers waits until requests for a host get the expected response.
func answers(t testing.TB, limit time.Duration, port int, host, want string) {
	t.Helper()
	last := ""
	parts.Eventually(t, limit, host+" answers "+want, func() bool {
		last = ask(port, host)
		return strings.Contains(last, want)
	})
}
