package status

import (
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// families returns the text of count metric families with a number of small samples each.
func families(prefix string, count, samples int) string {
	var text strings.Builder
	for family := range count {
		for sample := range samples {
			fmt.Fprintf(&text, "%s%d{a=\"%d\"} 1\n", prefix, family, sample)
		}
	}
	return text.String()
}

func heap() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// The application's metrics, which the agent holds during a scrape, need about as much memory as
// their text. Parsed samples would need twenty times as much.
func TestApplicationMetrics_TakeTheMemoryOfTheirText(t *testing.T) {
	for _, text := range []string{families("f", 9_000, 1), families("f", 90, 1000),
		families("f", 9_000, 20)} {
		url := serveText(t, "text/plain", text)
		m := newMerger(nil, nil, func() string { return url })
		out := newMerged(&strings.Builder{}, expfmt.NewFormat(expfmt.TypeTextPlain), m.drop)
		before := heap()
		held := m.scrapeApplication(t.Context(), out)
		used := int(heap()) - int(before)
		t.Logf("%d KB of text, %d KB held", len(text)>>10, used>>10)
		if limit := 2*len(text) + 300*len(held.families) + 1<<20; used > limit ||
			len(held.families) < 90 {
			t.Errorf("%d families of %d bytes take %d bytes, more than %d", len(held.families),
				len(text), used, limit)
		}
		runtime.KeepAlive(held)
	}
}

func TestMetrics_HaveLimits(t *testing.T) {
	comments := strings.Repeat("# "+strings.Repeat("x", 1<<20-3)+"\n", 16)
	for _, test := range []struct {
		name, text string
		want       error
		bad, least int
	}{
		{"families", families("f", applicationLimits.families+1, 1), errManyFamilies, 0,
			applicationLimits.families},
		{"lines of a family", families("f", 1, applicationLimits.lines+1) + "g 1\n", nil, 1, 1},
		{"bytes", families("f", 17, 1) + comments, errSourceTooLarge, 0, 16},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, bad := 0, 0
			err := eachFamily(strings.NewReader(test.text), applicationLimits,
				func(*dto.MetricFamily, []byte) error { got++; return nil },
				func(error) { bad++ })
			if !errors.Is(err, test.want) || bad != test.bad || got < test.least {
				t.Errorf("%v, %d bad, %d families", err, bad, got)
			}
		})
	}
}

// If Envoy or the application has too many metric families, those beyond the limit are dropped, an
// error of that source is counted, and the metrics of the other source are served.
func TestMetrics_TooManyFamiliesAreCounted(t *testing.T) {
	app := serveText(t, "text/plain", families("app", applicationLimits.families+10, 1))
	envoy := &proxy{}
	envoy.set(answering(map[string]string{"/stats/prometheus": families("envoy",
		envoyLimits.families+10, 1)}), 1, "")
	_, url := startServer(t, Options{Proxy: envoy, Config: Config{ApplicationMetrics: app}})
	code, body, _ := ask(t, http.MethodGet, url+"/metrics")
	for _, want := range []string{"app9{", "envoy9{",
		`outrider_scrape_errors_total{source="application"} 1`,
		`outrider_scrape_errors_total{source="envoy"} 1`} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("%d, no %s in %d bytes", code, want, len(body))
		}
	}
	if got := strings.Count(body, "\napp"); got != applicationLimits.families {
		t.Errorf("%d families of the application", got)
	}
}
