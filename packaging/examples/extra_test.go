package examples

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// edge is the example reverse-proxy, to which the extra examples are added one after the other. It
// has servers for /api/, and none for other paths.
type edge struct {
	*sandbox
	ca    *authority
	sick  atomic.Bool  // the second server fails its health check
	spans atomic.Int64 // exports of spans that the collector received
}

const www, api = "https://www.example.com/", "https://www.example.com/api/"

// stranger is an address of the sandbox that is not a loopback address.
const stranger = "192.0.2.1"

func newEdge(t *testing.T) *edge {
	e := &edge{sandbox: newSandbox(t, "reverse-proxy"), ca: newAuthority(t)}
	for _, name := range []string{"www", "shop", "blog"} {
		issued := e.ca.issue(name + ".example.com")
		e.write("outrider/credentials/"+name+"/tls.crt", issued.cert)
		e.write("outrider/credentials/"+name+"/tls.key", issued.key)
	}
	for name, address := range map[string]string{"api0": "127.0.0.1:4000",
		"api1": "127.0.0.1:4001", "shop": "127.0.0.1:3100", "blog": "127.0.0.1:3200"} {
		e.backend(address, nil, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/healthz" && name == "api1" && e.sick.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return
			}
			named(name)(w, r)
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, strings.Repeat("all work and no play ", 100))
		})
	}
	e.writeUser("alice", "secret")
	e.writeModule()
	e.backend("127.0.0.1:9191", nil, authorize)
	e.backend("127.0.0.1:4318", nil, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/traces" {
			e.spans.Add(1)
		}
	})
	e.install("json-log")
	e.do(func() {
		out, err := exec.Command("ip", "addr", "add", stranger+"/32", "dev", "lo").CombinedOutput()
		if err != nil {
			t.Errorf("ip addr add: %v: %s", err, out)
		}
	})
	e.start()
	return e
}

// ask sends a request over TLS, by default to /api/. Without an answer the status is 0.
func (e *edge) ask(r request) answer {
	e.t.Helper()
	if r.url == "" {
		r.url = api
	}
	r.to, r.tls = "127.0.0.1:443", e.ca.trust(parsed(e.t, r.url).Hostname())
	got, err := e.send(r)
	if err != nil {
		return answer{body: err.Error()}
	}
	return got
}

// headers returns a request with headers.
func headers(pairs ...string) request {
	r := request{header: http.Header{}}
	for i := 0; i < len(pairs); i += 2 {
		r.header.Set(pairs[i], pairs[i+1])
	}
	return r
}

// extra is an example configuration that is installed in addition to the example reverse-proxy.
type extra struct {
	name     string
	acts     func(*edge) bool // reports whether the example has an effect
	shows    func(*testing.T, *edge)
	url      string // URL for mesh explain; "": /api/
	from     string // client address for mesh explain, which the example refuses; "": none
	explains string // expected part of the explanation, besides the file
	alone    bool   // excluded from the test of all examples together
}

func (x extra) try(t *testing.T, e *edge) {
	if x.acts(e) {
		t.Fatal("it acts before it is installed")
	}
	example := e.install(x.name)
	defer func() {
		e.remove(example)
		if !t.Failed() {
			e.eventually(x.name+" no longer acts", func() bool { return !x.acts(e) })
		}
	}()
	e.eventually(x.name+" acts", func() bool { return x.acts(e) })
	e.check()
	if x.shows != nil {
		x.shows(t, e)
	}
	if x.url == "" {
		x.url = api
	}
	arguments := []string{"mesh", "explain", x.url}
	if x.from != "" {
		arguments = append(arguments, "--from", x.from)
	}
	out, err := e.outrider(arguments...)
	where := "from /etc/outrider/" + example.Files[0].Path + ":"
	if strings.HasSuffix(example.Files[0].Path, ".toml") {
		where = ""
	}
	if (err != nil) != (x.from != "") || !strings.Contains(out, x.explains) || !strings.Contains(out, where) {
		t.Errorf("mesh explain does not say %q and %q: %v\n%s", x.explains, where, err, out)
	}
}

// Each extra example takes effect as soon as its files exist, and ends when they are removed. All
// share one agent and one Envoy.
func TestExtras(t *testing.T) {
	e := newEdge(t)
	for _, x := range extras {
		t.Run(x.name, func(t *testing.T) {
			was := e.t
			e.t = t
			defer func() { e.t = was }()
			x.try(t, e)
		})
	}
	t.Run("json-log", func(t *testing.T) { showJSONLog(t, e) })
	t.Run("istio-metrics", func(t *testing.T) { showIstioMetrics(t, e) })
	t.Run("together", func(t *testing.T) {
		for _, x := range extras {
			if !x.alone {
				e.install(x.name)
			}
		}
		header := "PROXY TCP4 127.0.0.9 127.0.0.1 5555 443\r\n"
		e.eventually("all act", func() bool { return e.ask(request{preface: header}).status == 403 })
		e.check()
	})
}

// showIstioMetrics installs the example, and checks that the agent's metrics include those of
// Istio.
func showIstioMetrics(t *testing.T, e *edge) {
	was := e.t
	e.t = t
	defer func() { e.t = was }()
	example := e.install("istio-metrics")
	defer e.remove(example)
	e.eventually("requests are counted", func() bool {
		e.ask(request{})
		got, err := e.send(request{url: "http://localhost/stats/prometheus", to: "127.0.0.1:15020"})
		return err == nil && strings.Contains(got.body, "\nistio_requests_total{") &&
			strings.Contains(got.body, `reporter="source"`) &&
			strings.Contains(got.body, `request_method="GET"`)
	})
	e.check()
}

func showTelemetryLog(t *testing.T, e *edge) {
	parts.Eventually(t, time.Minute, "the log of the Telemetry is written", func() bool {
		text, err := os.ReadFile(filepath.Join(e.logs, "telemetry.log"))
		return err == nil && bytes.Contains(text, []byte(`"path":"/api/"`)) &&
			bytes.Contains(text, []byte(`"status":200`))
	})
}

func showJSONLog(t *testing.T, e *edge) {
	out, err := e.outrider("mesh", "explain", api)
	if err != nil || !strings.Contains(out, "logs requests to /var/log/outrider/access.log") {
		t.Errorf("mesh explain: %v\n%s", err, out)
	}
	type line struct {
		Method, Path, Client, Protocol string
		Status, Ms                     *int
		BytesSent                      *int `json:"bytes_sent"`
	}
	parts.Eventually(t, time.Minute, "the log is written", func() bool {
		text, err := os.ReadFile(filepath.Join(e.logs, "access.log"))
		if err != nil {
			t.Fatal(err)
		}
		for row := range bytes.Lines(text) {
			var l line
			if err := json.Unmarshal(row, &l); err != nil {
				t.Fatalf("%s: %v", row, err)
			}
			if l.Path == "/api/" && l.Method == http.MethodGet && l.Client == "127.0.0.1" &&
				*l.Status == 200 && *l.BytesSent > 0 && l.Ms != nil {
				return true
			}
		}
		return false
	})
}
