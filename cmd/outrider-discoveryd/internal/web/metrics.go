package web

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	buildDesc = prometheus.NewDesc("outrider_discoveryd_build_info", "1, with the version.",
		[]string{"version"}, nil)
	readyDesc = prometheus.NewDesc("outrider_discoveryd_ready", "1 if clients are served.", nil, nil)
	hostsDesc = prometheus.NewDesc("outrider_discoveryd_hosts",
		"Connected proxies, by the state of their configuration: synced, pending or refused.",
		[]string{"state"}, nil)
	versionsDesc = prometheus.NewDesc("outrider_discoveryd_host_versions",
		"Connected proxies, by the versions of agent and Envoy that they claim.",
		[]string{"agent", "envoy"}, nil)
	expiryDesc = prometheus.NewDesc("outrider_discoveryd_certificate_expiry_timestamp_seconds",
		"When the first certificate with which a connected proxy identified itself ends.", nil, nil)
	endpointsDesc = prometheus.NewDesc("outrider_discoveryd_endpoints",
		"Endpoints of all services that get requests.", nil, nil)
	unhealthyDesc = prometheus.NewDesc("outrider_discoveryd_unhealthy_workloads",
		"WorkloadEntries that get no requests because they are not healthy.", nil, nil)
	problemsDesc = prometheus.NewDesc("outrider_discoveryd_problems",
		"Problems of the configuration.", []string{"severity"}, nil)
	conditionDesc = prometheus.NewDesc("outrider_discoveryd_condition",
		"1 for each active condition.", []string{"code", "severity"}, nil)
)

const (
	// collectTime bounds the wait for a snapshot. Prometheus' default scrape timeout is ten
	// seconds.
	collectTime = 8 * time.Second
	// mostVersions bounds the pairs of agent and Envoy versions in metrics, because clients choose
	// them. Hosts with less frequent pairs count as "other".
	mostVersions = 20
)

// Describe implements prometheus.Collector. It sends no descriptors, because Collect omits metrics
// if the state cannot be read.
func (s *Server) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s *Server) Collect(out chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	gauge(buildDesc, 1, s.options.Version)
	ready := 0.0
	if s.options.Ready() == nil {
		ready = 1
	}
	gauge(readyDesc, ready)
	for _, c := range s.options.Conditions() {
		gauge(conditionDesc, 1, c.Code, string(c.Severity))
	}
	ctx, cancel := context.WithTimeout(context.Background(), collectTime)
	defer cancel()
	now, err := s.snapshot(ctx)
	if err != nil {
		return // another request still makes a snapshot
	}
	counts := now.counts()
	for severity, number := range counts.Problems {
		gauge(problemsDesc, float64(number), severity)
	}
	gauge(endpointsDesc, float64(counts.Endpoints))
	gauge(unhealthyDesc, float64(counts.Unhealthy))
	if now.partial {
		return // in metrics, missing hosts would look like an outage
	}
	for state, number := range counts.Hosts {
		gauge(hostsDesc, float64(number), state)
	}
	for of, number := range versions(now.hosts) {
		gauge(versionsDesc, float64(number), of.agent, of.envoy)
	}
	if first := firstExpiry(now.hosts); !first.IsZero() {
		gauge(expiryDesc, float64(first.Unix()))
	}
}

type versionPair struct{ agent, envoy string }

// versions counts hosts by the pair of versions that they report. Pairs beyond the mostVersions-1
// most frequent ones are counted together as "other".
func versions(hosts []ConnectedHost) map[versionPair]int {
	numbers := map[versionPair]int{}
	for i := range hosts {
		numbers[versionPair{hosts[i].Agent, hosts[i].Envoy}]++
	}
	if len(numbers) <= mostVersions {
		return numbers
	}
	byNumber := slices.SortedFunc(maps.Keys(numbers), func(x, y versionPair) int {
		return cmp.Or(cmp.Compare(numbers[y], numbers[x]), cmp.Compare(x.agent, y.agent),
			cmp.Compare(x.envoy, y.envoy))
	})
	others := 0
	for _, rare := range byNumber[mostVersions-1:] {
		others += numbers[rare]
		delete(numbers, rare)
	}
	// +=, because a client may report the version "other"
	numbers[versionPair{"other", "other"}] += others
	return numbers
}

// firstExpiry returns the earliest expiry of the hosts' client certificates; zero: there are none.
func firstExpiry(hosts []ConnectedHost) (first time.Time) {
	for i := range hosts {
		ends := hosts[i].CertificateEnds
		if !ends.IsZero() && (first.IsZero() || ends.Before(first)) {
			first = ends
		}
	}
	return first
}
