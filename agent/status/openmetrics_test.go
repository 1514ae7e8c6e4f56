package status

import (
	"io"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

func TestOpenMetricsOfAnApplication(t *testing.T) {
	text := `# HELP app_requests Requests.
# TYPE app_requests counter
# UNIT app_requests requests
app_requests_total{path="/ # {x}"} 17.0 1520879607.789 # {trace="abc"} 1.0 1520879607.789
app_requests_created{path="/"} 1520430000.123
# TYPE app_latency histogram
# HELP app_latency How long.
app_latency_bucket{le="1.0"} 1 # {trace="x"} 0.5
app_latency_bucket{le="+Inf"} 2
app_latency_count 2
app_latency_sum 3.0
# TYPE app_build info
app_build_info{version="1"} 1
# TYPE app_thing unknown
app_thing 4
# EOF
app_after 1
`
	app := serveText(t, "application/openmetrics-text; version=1.0.0; charset=utf-8", text)
	_, url := startServer(t, Options{Config: Config{ApplicationMetrics: app}})
	_, body, _ := ask(t, "GET", url+"/metrics")
	golden(t, "from-openmetrics.txt", body)
}

func FuzzEachFamily(f *testing.F) {
	f.Add([]byte(envoyText))
	f.Add([]byte(applicationText))
	f.Add([]byte("a{b=\"\xff\"} 1\n{\"x.y\"} 1\n# TYPE \"x y\" counter\n# HELP\n#\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, format := range []expfmt.Format{expfmt.NewFormat(expfmt.TypeTextPlain),
			expfmt.NewFormat(expfmt.TypeOpenMetrics)} {
			merged := newMerged(io.Discard, format, func(string, string, int) {})
			held := heldSource{name: "application", families: map[string]heldFamily{}}
			keep := func(family *dto.MetricFamily, text []byte) error { merged.holdText(held, family, text); return nil }
			if err := eachFamily(strings.NewReader(string(text)), applicationLimits, keep, func(error) {}); err != nil {
				return
			}
			merged.held = append(merged.held, held)
			write := func(family *dto.MetricFamily, _ []byte) error { return merged.write("envoy", family) }
			if err := eachFamily(strings.NewReader(string(text)), envoyLimits, write, func(error) {}); err != nil {
				t.Fatal(err)
			}
			if err := merged.rest(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func FuzzOpenMetrics(f *testing.F) {
	f.Add([]byte("# TYPE a counter\n# HELP a b\na_total{x=\"}\\\"\"} 1 2.5 # {y=\"z\"} 1\n# EOF\n"))
	f.Add([]byte("# TYPE \"a b\" info\n{\"a b_info\",c=\"d\"} 1 1e300\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		converted, err := io.ReadAll(newOpenMetricsReader(strings.NewReader(string(text))))
		if err != nil {
			t.Fatal(err)
		}
		if len(converted) > 3*len(text)+1024 {
			t.Errorf("%d bytes became %d", len(text), len(converted))
		}
	})
}

// In OpenMetrics, two counters x and x_total are both exported. Envoy has such a pair: upstream_rq,
// by response code, and upstream_rq_total.
func TestMergedMetrics_OpenMetricsKeepsTotalBesideItsPrefix(t *testing.T) {
	envoy := &proxy{}
	envoy.set(answering(map[string]string{"/stats/prometheus": `# TYPE envoy_rq counter
envoy_rq{code="200"} 1
# TYPE envoy_rq_total counter
envoy_rq_total{} 2
`}), 1, "")
	_, url := startServer(t, Options{Proxy: envoy})
	_, body, _ := ask(t, "GET", url+"/stats/prometheus", "Accept",
		"application/openmetrics-text;version=1.0.0")
	for _, want := range []string{"# TYPE envoy_rq unknown\nenvoy_rq{code=\"200\"} 1.0\n",
		"# TYPE envoy_rq_total unknown\nenvoy_rq_total 2.0\n"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in %s", want, body)
		}
	}
	if strings.Contains(body, dropRepeated) {
		t.Error(body)
	}
}
