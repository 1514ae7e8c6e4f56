package status

import (
	"compress/gzip"
	"errors"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"outrider.org/outrider/scripts/parts"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	parts.Golden(t, filepath.Join("testdata", name), got, *update)
}

const envoyText = `# TYPE envoy_http_requests counter
envoy_http_requests{cluster="a"} 1
envoy_http_requests{cluster="b"} 2
# TYPE shared gauge
shared{from="envoy"} 1
# TYPE conflict counter
conflict{} 1
# TYPE envoy_time histogram
envoy_time_bucket{le="1"} 1
envoy_time_bucket{le="+Inf"} 2
envoy_time_sum{} 3.5
envoy_time_count{} 2
# TYPE envoy_http_requests gauge
envoy_http_requests{cluster="again"} 1
# TYPE envoy_istiocustom_istio_requests_total counter
envoy_istiocustom_istio_requests_total{reporter="source"} 4
bare 5
`

const applicationText = `# HELP shared Of both.
# TYPE shared gauge
shared{from="app"} 2
shared{from="envoy"} 3
# HELP conflict Another type.
# TYPE conflict gauge
conflict{from="app"} 1
# TYPE app_requests_total counter
app_requests_total{path="/a b{\"x\"}"} 7 1700000000000
# TYPE app_bad counter
app_bad{unterminated="x} 1
# TYPE app_lines summary
app_lines{quantile="0.5"} 1
app_lines_sum 2
app_lines_count 3
`

// agentMetrics returns a registry like the agent's.
func agentMetrics() *prometheus.Registry {
	registry := prometheus.NewPedanticRegistry()
	epochs := prometheus.NewCounter(prometheus.CounterOpts{Name: "outrider_epochs_total",
		Help: "Epochs started."})
	epochs.Add(3)
	registry.MustRegister(epochs)
	return registry
}

func serveText(t *testing.T, contentType, text string) string {
	t.Helper()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(app.Close)
	return app.URL
}

func TestMergedMetrics(t *testing.T) {
	app := serveText(t, "text/plain; version=0.0.4", applicationText)
	envoy := &proxy{}
	envoy.set(answering(map[string]string{"/stats/prometheus": envoyText}), 1, "")
	_, url := startServer(t,
		Options{Proxy: envoy, Metrics: agentMetrics(), Config: Config{ApplicationMetrics: app}})
	for _, test := range []struct{ accept, kind, golden string }{
		{"", "text/plain; version=0.0.4", "merged.txt"},
		{"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited", "text/plain; version=0.0.4", ""},
		{"application/openmetrics-text;version=1.0.0,text/plain;q=0.5", "application/openmetrics-text; version=1.0.0", "merged.openmetrics"},
	} {
		code, body, header := ask(t, "GET", url+"/stats/prometheus", "Accept", test.accept)
		if code != 200 || !strings.HasPrefix(header.Get("Content-Type"), test.kind) {
			t.Errorf("%s: %d %s", test.accept, code, header.Get("Content-Type"))
		}
		if test.golden == "" {
			continue
		}
		golden(t, test.golden, withoutCounts(body))
		if test.golden == "merged.txt" {
			parser := expfmt.NewTextParser(model.UTF8Validation)
			if _, err := parser.TextToMetricFamilies(strings.NewReader(body)); err != nil {
				t.Errorf("the answer cannot be parsed: %v", err)
			}
		}
	}
}

// withoutCounts removes the values that grow with each scrape of a test.
func withoutCounts(body string) string {
	lines := strings.SplitAfter(body, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "outrider_scrape_dropped_total{") {
			lines[i] = line[:strings.LastIndex(line, " ")] + " N\n"
		}
	}
	return strings.Join(lines, "")
}

func TestMetricsAreCompressedWhereAskedFor(t *testing.T) {
	_, url := startServer(t, Options{Metrics: agentMetrics()})
	for _, test := range []struct {
		accept     string
		compressed bool
	}{{"gzip", true}, {"deflate, GZIP;q=0.5", true}, {"gzip;q=0", false}, {"br", false}, {"", false}} {
		_, body, header := ask(t, "GET", url+"/metrics", "Accept-Encoding", test.accept)
		if (header.Get("Content-Encoding") == "gzip") != test.compressed {
			t.Errorf("%q: Content-Encoding %q", test.accept, header.Get("Content-Encoding"))
			continue
		}
		if test.compressed {
			reader, err := gzip.NewReader(strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			plain, err := io.ReadAll(reader)
			if err != nil {
				t.Fatal(err)
			}
			body = string(plain)
		}
		if !strings.Contains(body, "outrider_epochs_total 3\n") {
			t.Errorf("%q: %s", test.accept, body)
		}
	}
}

type failingGatherer struct{}

func (failingGatherer) Gather() ([]*dto.MetricFamily, error) {
	families, _ := agentMetrics().Gather()
	return families, errors.New("a collector failed")
}

func TestASourceThatFailsIsCountedAndTheOthersAreAnswered(t *testing.T) {
	good := serveText(t, "text/plain", "app_up 1\n")
	cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, "app_first 1\napp_second")
	}))
	defer cut.Close()
	notFound := httptest.NewServer(http.NotFoundHandler())
	defer notFound.Close()
	working, none := &proxy{}, &proxy{}
	working.set(answering(map[string]string{"/stats/prometheus": "envoy_up 1\n"}), 0, "")
	none.set(nil, 0, "no epoch is live")
	failing := &proxy{}
	failing.set(answering(nil), 0, "")
	tests := []struct {
		name        string
		proxy       *proxy
		application string
		gatherer    prometheus.Gatherer
		failed      string
		has, not    []string
	}{
		{"all well", working, good, agentMetrics(), "", []string{"app_up 1", "envoy_up 1", "outrider_epochs_total 3"}, nil},
		{"no epoch", none, good, agentMetrics(), sourceEnvoy, []string{"app_up 1", "outrider_epochs_total 3"}, nil},
		{"Envoy answers 404", failing, good, agentMetrics(), sourceEnvoy, []string{"app_up 1"}, nil},
		{"no application", working, "http://127.0.0.1:1/", agentMetrics(), sourceApplication,
			[]string{"envoy_up 1", "outrider_epochs_total 3"}, nil},
		{"application answers 404", working, notFound.URL, agentMetrics(), sourceApplication, []string{"envoy_up 1"}, nil},
		{"an answer that is cut", working, cut.URL, agentMetrics(), sourceApplication,
			[]string{"app_first 1", "envoy_up 1"}, []string{"app_second"}},
		{"a collector fails", working, good, failingGatherer{}, sourceAgent, []string{"app_up 1", "outrider_epochs_total 3"}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, url := startServer(t, Options{Proxy: test.proxy, Metrics: test.gatherer,
				Config: Config{ApplicationMetrics: test.application}})
			_, body, _ := ask(t, "GET", url+"/metrics")
			for _, source := range []string{sourceEnvoy, sourceApplication, sourceAgent} {
				count := "0"
				if source == test.failed {
					count = "1"
				}
				test.has = append(test.has, `outrider_scrape_errors_total{source="`+source+`"} `+count)
			}
			for _, line := range test.has {
				if !strings.Contains(body, line+"\n") {
					t.Errorf("%q is missing in\n%s", line, body)
				}
			}
			for _, text := range test.not {
				if strings.Contains(body, text) {
					t.Errorf("%q is in\n%s", text, body)
				}
			}
		})
	}
}

func TestAScrapeOfItselfEnds(t *testing.T) {
	server, url := startServer(t, Options{})
	server.Configure(Config{ApplicationMetrics: url + "/metrics"})
	code, body, _ := ask(t, "GET", url+"/metrics")
	if code != 200 || !strings.Contains(body, `outrider_scrape_errors_total{source="application"} 1`) {
		t.Errorf("%d %s", code, body)
	}
}

func TestALineOrAnAnswerThatIsTooLong(t *testing.T) {
	var names []string
	var bad []error
	text := "a 1\n" + `b{x="` + strings.Repeat("y", lineAtMost+10) + `"} 1` + "\nc 1\n"
	each := func(family *dto.MetricFamily, _ []byte) error { names = append(names, family.GetName()); return nil }
	if err := eachFamily(strings.NewReader(text), applicationLimits, each, func(err error) { bad = append(bad, err) }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(names, []string{"a", "c"}) || len(bad) != 1 ||
		!errors.Is(bad[0], errLineTooLong) {
		t.Errorf("%v %v", names, bad)
	}
	if err := eachFamily(strings.NewReader(text), sourceLimits{bytes: 100, families: 9, lines: 9}, each, func(error) {}); !errors.Is(err, errSourceTooLarge) {
		t.Errorf("%v", err)
	}
}

// TestMergedMetricsOfARealEnvoy merges the metrics of a real Envoy 1.40.
func TestMergedMetricsOfARealEnvoy(t *testing.T) {
	socket, _ := startEnvoy(t, `, "static_resources": {"clusters": [
		{"name": "one", "connect_timeout": "1s"}, {"name": "two", "connect_timeout": "1s"}]}`)
	app := serveText(t, "text/plain",
		"# TYPE envoy_server_live gauge\nenvoy_server_live{from=\"app\"} 1\napp_up 1\n")
	envoy := &proxy{}
	envoy.set(unixAdmin(t, socket), 7, "")
	_, url := startServer(t,
		Options{Proxy: envoy, Metrics: agentMetrics(), Config: Config{ApplicationMetrics: app}})
	_, raw, _ := ask(t, "GET", url+"/stats/prometheus")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	if live := families["envoy_server_live"]; live == nil || len(live.Metric) != 2 {
		t.Errorf("envoy_server_live: %v", live)
	}
	if clusters := families["envoy_cluster_upstream_cx_total"]; clusters == nil ||
		len(clusters.Metric) < 2 {
		t.Errorf("envoy_cluster_upstream_cx_total: %v", clusters)
	}
	for name, count := range headers(raw) {
		if count != 1 {
			t.Errorf("%d TYPE lines of %s", count, name)
		}
	}
	if _, dropped, found := strings.Cut(raw, "outrider_scrape_dropped_total{"); found {
		t.Errorf("something of Envoy's was dropped:\n%s", dropped)
	}
	_, open, _ := ask(t, "GET", url+"/stats/prometheus", "Accept", "application/openmetrics-text")
	if !strings.HasSuffix(open, "\n# EOF\n") || strings.Count(open, "# EOF") != 1 {
		t.Error("no OpenMetrics")
	}
}

// headers counts the TYPE lines of each name.
func headers(text string) map[string]int {
	count := map[string]int{}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ := strings.Cut(rest, " ")
			count[name]++
		}
	}
	return count
}

func TestTooManyScrapesWaitTheirTurn(t *testing.T) {
	gone := make(chan struct{})
	app := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-gone:
		}
	}))
	defer app.Close()
	defer close(gone)
	_, url := startServer(t,
		Options{Metrics: agentMetrics(), Config: Config{ApplicationMetrics: app.URL}})
	codes := make(chan int, 3*scrapesAtATime)
	for range cap(codes) {
		go func() {
			request, _ := http.NewRequest(http.MethodGet, url+"/metrics", nil)
			request.Header.Set(timeoutHeader, "0.4")
			response, err := client.Do(request)
			if err != nil {
				codes <- 0
				return
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			codes <- response.StatusCode
		}()
	}
	count := map[int]int{}
	for range cap(codes) {
		count[<-codes]++
	}
	if count[200]+count[503] != cap(codes) || count[200] < scrapesOfOne {
		t.Errorf("answers: %v", count)
	}
}
