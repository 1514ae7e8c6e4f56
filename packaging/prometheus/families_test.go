package prometheus_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/rig"
)

// most is the maximum number of metric families that an agent exports by default.
const most = 300

// named matches metric names that contain names of the scene's hosts, ports, listeners or
// certificates.
var named = regexp.MustCompile(
	`\d{2}|example|backend_\d|host_\d|web|edge|tls_(crt|key)|tmp|_ssl_.*TLS|outbound_(_|\d)|credential`)

func families(text string) []string {
	found := map[string]bool{}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ := strings.Cut(rest, " ")
			found[name] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func samples(text string) int {
	return strings.Count(text, "\n") - strings.Count(text, "\n#")
}

func TestMetrics_FamiliesHoldNoNames(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for _, mode := range []string{"default", "all"} {
		if mode == "all" {
			s.WriteFile("conf.d/60-stats.toml", "[telemetry]\nstats = \"all\"\n")
			if result := s.RunOutrider("reload"); result.ExitCode != 0 {
				t.Fatal(result.Stderr)
			}
		}
		s.exercise(t)
		for _, port := range []int{s.Ports.Status, s.Ports.Prometheus} {
			text := s.scrape(t, port)
			all := families(text)
			t.Logf("%s, port %d: %d families, %d samples, %d bytes", mode, port, len(all),
				samples(text), len(text))
			if mode == "default" && len(all) > most {
				t.Errorf("%d families: %s", len(all), all)
			}
			for _, name := range all {
				if named.MatchString(name) {
					t.Errorf("%s: a family is called %s", mode, name)
				}
			}
			for _, want := range []string{
				`envoy_cluster_upstream_rq_xx{envoy_response_code_class="5",` +
					`cluster_name="outbound|80||backend-0.internal"} `,
				fmt.Sprintf(`envoy_http_downstream_rq_xx{envoy_response_code_class="2",`+
					`http_conn_manager_prefix="outbound_0.0.0.0_%d"} `, s.Ports.HTTP),
				fmt.Sprintf(`envoy_listener_downstream_cx_total{listener_address="0.0.0.0_%d"} `,
					s.Ports.HTTP),
				fmt.Sprintf(`envoy_tcp_downstream_cx_total{tcp_prefix="outbound|%d||web.test"} `,
					s.Ports.TCP),
				fmt.Sprintf(`envoy_sds_update_success{envoy_xds_resource_name="file-cert_%s/tls/`+
					`tls.crt~%s/tls/tls.key"} `, s.Dir[1:], s.Dir),
				fmt.Sprintf(`envoy_listener_ssl_certificate_expiration_unix_time_seconds{`+
					`listener_address="0.0.0.0_%d",envoy_tls_certificate="kubernetes://edge"} `,
					s.credential),
			} {
				if !strings.Contains(text, want) {
					prefix, _, _ := strings.Cut(want, "{")
					t.Errorf("%s: no %s in\n%s", mode, want, strings.Join(regexp.MustCompile(
						`(?m)^`+prefix+`.*$`).FindAllString(text, 4), "\n"))
				}
			}
		}
	}
}

func TestMetrics_ListedStatistics(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true, TOML: `[telemetry]
stats_prefixes = ["runtime."]
stats_suffixes = [".downstream_cx_destroy"]
stats_regexps = ['cluster\..*;\.bind_errors']
`})
	r.StartReady()
	s := &scene{Rig: r}
	if _, _, err := s.GetThroughEnvoy("/"); err != nil {
		t.Fatal(err)
	}
	text := s.scrape(t, r.Ports.Status)
	for _, want := range []string{"envoy_runtime_num_keys{} ", "envoy_listener_downstream_cx_destroy{",
		"envoy_cluster_bind_errors{", "envoy_server_live{} "} {
		if !strings.Contains(text, "\n"+want) && !strings.Contains(text,
			"\n"+strings.Replace(want, "{} ", " ", 1)) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(text, "envoy_http1_") {
		t.Error("statistics that nothing lists are exported")
	}
}
