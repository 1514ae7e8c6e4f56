package status

import (
	"bufio"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/probe"
)

// Values of the label source: the sources of the merged metrics.
const (
	sourceEnvoy       = "envoy"
	sourceApplication = "application"
	sourceAgent       = "agent"
)

// Limits of a scrape.
const (
	scrapeTime     = 10 * time.Second // Prometheus' default scrape_timeout
	scrapesAtATime = 4
	scrapesOfOne   = 2 // concurrent scrapes per user or host
	scrapeMargin   = 500 * time.Millisecond
	timeoutHeader  = "X-Prometheus-Scrape-Timeout-Seconds"
	loopHeader     = "X-Outrider-Scrape"
)

// Limits of one scrape. Envoy's answer is streamed, and only the names of its families are held;
// the application's answer is held in memory.
var (
	envoyLimits       = sourceLimits{bytes: 256 << 20, families: 20_000, lines: 200_000}
	applicationLimits = sourceLimits{bytes: 16 << 20, families: 10_000, lines: 50_000}
)

// merger answers scrapes with the metrics of the agent, Envoy and the application. A source that
// fails is omitted and counted.
type merger struct {
	agent       prometheus.Gatherer
	proxy       Proxy
	application func() string // returns the URL of the application's metrics
	client      *http.Client
	slots       *admission.Pool

	// metrics about scrapes, gathered last so that they include the current scrape
	own     *prometheus.Registry
	failed  *prometheus.CounterVec
	dropped *prometheus.CounterVec
}

func newMerger(agent prometheus.Gatherer, proxy Proxy, application func() string) *merger {
	m := &merger{
		agent: agent, proxy: proxy, application: application,
		client: &http.Client{CheckRedirect: probe.SameHost,
			Transport: &http.Transport{DisableKeepAlives: true}},
		slots: admission.NewPool(admission.Limits{Total: scrapesAtATime, PerKey: scrapesOfOne}),
		own:   prometheus.NewPedanticRegistry(),
		failed: prometheus.NewCounterVec(
			prometheus.CounterOpts{Name: "outrider_scrape_errors_total",
				Help: "Scrapes in which a source of the merged metrics could not be read, or only in part."},
			[]string{"source"}),
		dropped: prometheus.NewCounterVec(
			prometheus.CounterOpts{Name: "outrider_scrape_dropped_total",
				Help: "Metric families and samples that were left out of the merged metrics, and why."},
			[]string{"source", "reason"}),
	}
	m.own.MustRegister(m.failed, m.dropped)
	for _, source := range []string{sourceAgent, sourceApplication, sourceEnvoy} {
		m.failed.WithLabelValues(source) // creates the counter, so that 0 is exported
	}
	return m
}

// ServeHTTP answers a scrape.
func (m *merger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(loopHeader) != "" {
		say(w, http.StatusLoopDetected,
			"[status] application_metrics names this address itself: set it to the application's")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeFor(r))
	defer cancel()
	slot, err := m.slots.WaitAcquire(ctx, admission.KeyFromContext(ctx), func() {})
	if err != nil {
		say(w, http.StatusServiceUnavailable, fmt.Sprintf("%d scrapes are under way already",
			scrapesAtATime))
		return
	}
	// Envoy completes its answer even if the scraper disconnects. Hold the slot until the answer is
	// complete.
	var envoyDone sync.WaitGroup
	defer func() { go func() { envoyDone.Wait(); slot.Release() }() }()
	format := expfmt.NegotiateIncludingOpenMetrics(r.Header)
	if t := format.FormatType(); t != expfmt.TypeOpenMetrics && t != expfmt.TypeTextPlain {
		format = expfmt.NewFormat(expfmt.TypeTextPlain).WithEscapingScheme(
			format.ToEscapingScheme())
	}
	w.Header().Set("Content-Type", string(format))
	w.Header().Set("Vary", "Accept, Accept-Encoding")
	var out io.Writer = w
	if acceptsGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
		compressed := gzip.NewWriter(w)
		defer func() { _ = compressed.Close() }()
		out = compressed
	}
	buffered := bufio.NewWriterSize(out, 64<<10)
	if m.write(ctx, &envoyDone, newMerged(buffered, format, m.drop)) == nil {
		_ = buffered.Flush()
	}
}

// write merges all sources. It returns only errors of the connection to the scraper.
func (m *merger) write(ctx context.Context, envoyDone *sync.WaitGroup, merged *merged) error {
	application := make(chan heldSource, 1)
	go func() { application <- m.scrapeApplication(ctx, merged) }()
	envoy := m.openEnvoy(ctx, envoyDone)
	if envoy != nil {
		defer envoy.Close()
	}
	merged.held = append(merged.held, <-application)
	if m.agent != nil {
		families, err := m.agent.Gather() // returns partial results with an error
		if err != nil {
			m.fail(sourceAgent)
		}
		merged.hold(sourceAgent, families)
	}
	if envoy != nil {
		var broken error
		err := eachFamily(envoy, envoyLimits, func(family *dto.MetricFamily, _ []byte) error {
			nameAsIstio(family)
			broken = merged.write(sourceEnvoy, family)
			return broken
		}, m.malformed(sourceEnvoy))
		if broken != nil {
			return broken
		}
		if err != nil {
			m.fail(sourceEnvoy)
		}
	}
	if err := merged.rest(); err != nil {
		return err
	}
	own, err := m.own.Gather()
	if err != nil {
		return err
	}
	for _, family := range own {
		if err := merged.write(sourceAgent, family); err != nil {
			return err
		}
	}
	return merged.end()
}

// nameAsIstio removes the prefix envoy_istiocustom_ of a metric family. Envoy adds it to the
// statistics of Istio's extensions; Istio's build of Envoy does not.
func nameAsIstio(family *dto.MetricFamily) {
	if name, ok := strings.CutPrefix(family.GetName(), "envoy_istiocustom_"); ok && name != "" {
		family.Name = &name
	}
}

// openEnvoy requests the live epoch's metrics and returns the body of the answer, which can be read
// until ctx ends. It returns nil if the request fails or there is no proxy. The request runs in a
// goroutine of envoyDone.
func (m *merger) openEnvoy(ctx context.Context, envoyDone *sync.WaitGroup) io.ReadCloser {
	if m.proxy == nil {
		return nil
	}
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), scrapeTime)
	answered := make(chan io.ReadCloser, 1)
	envoyDone.Go(func() {
		answered <- m.queryEnvoy(asking)
		context.AfterFunc(ctx, cancel) // from now on, the end of the scrape also ends the request
	})
	var body io.ReadCloser
	select {
	case body = <-answered:
	case <-ctx.Done():
	}
	if body == nil {
		m.fail(sourceEnvoy)
	}
	return body
}

// queryEnvoy returns the body of Envoy's answer, or nil.
func (m *merger) queryEnvoy(ctx context.Context) io.ReadCloser {
	request, err := http.NewRequestWithContext(
		ctx, http.MethodGet, "http://admin/stats/prometheus", nil)
	if err != nil {
		return nil
	}
	response, err := live{m.proxy}.RoundTrip(request)
	if err != nil {
		return nil
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil
	}
	return response.Body
}

// scrapeApplication reads the application's metrics and holds their text until Envoy's stream is
// merged with it.
func (m *merger) scrapeApplication(ctx context.Context, merged *merged) heldSource {
	held := heldSource{name: sourceApplication, families: map[string]heldFamily{}}
	if target := m.application(); target != "" {
		if err := m.readApplication(ctx, target,
			func(family *dto.MetricFamily,
				text []byte) {
				merged.holdText(held, family, text)
			}); err != nil {
			m.fail(sourceApplication)
		}
	}
	return held
}

// readApplication calls each for every family of the application.
func (m *merger) readApplication(
	ctx context.Context, target string, each func(*dto.MetricFamily, []byte),
) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return err
	}
	// The answer is parsed for merging, whatever format the scraper receives: prefer text, and
	// accept OpenMetrics from an application that has nothing else.
	request.Header.Set("Accept",
		"text/plain;version=0.0.4;q=1,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1")
	request.Header.Set(loopHeader, "1")
	if deadline, ok := ctx.Deadline(); ok {
		request.Header.Set(timeoutHeader, strconv.FormatFloat(time.Until(deadline).Seconds(),
			'f', 3, 64))
	}
	response, err := m.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the application answered %s", response.Status)
	}
	body := io.Reader(response.Body)
	if strings.HasPrefix(response.Header.Get("Content-Type"), expfmt.OpenMetricsType) {
		body = newOpenMetricsReader(body)
	}
	return eachFamily(body, applicationLimits, func(family *dto.MetricFamily, text []byte) error {
		each(family, text)
		return nil
	}, m.malformed(sourceApplication))
}

func (m *merger) fail(source string) { m.failed.WithLabelValues(source).Inc() }

func (m *merger) drop(source, reason string, count int) {
	m.dropped.WithLabelValues(source, reason).Add(float64(count))
}

func (m *merger) malformed(source string) func(error) {
	return func(error) { m.drop(source, dropMalformed, 1) }
}

// timeFor returns the timeout of a scrape: the scraper's own, less a margin for sending the answer,
// at most scrapeTime.
func timeFor(r *http.Request) time.Duration {
	seconds, err := strconv.ParseFloat(r.Header.Get(timeoutHeader), 64)
	if err != nil || seconds <= 0 || seconds > scrapeTime.Seconds() {
		return scrapeTime
	}
	requested := time.Duration(seconds * float64(time.Second))
	return max(requested-scrapeMargin, requested/2)
}

func acceptsGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, parameters, _ := strings.Cut(strings.TrimSpace(part), ";")
		if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
			continue
		}
		quality, found := strings.CutPrefix(strings.ReplaceAll(parameters, " ", ""), "q=")
		weight, err := strconv.ParseFloat(quality, 64)
		return !found || err == nil && weight > 0
	}
	return false
}
