package meshfile_test

import (
	"strings"
	"testing"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/meshfile"
)

// TestProviders parses one provider of extensionProviders. want has the form that TestFields
// describes, without the line and without the common beginning of all field paths.
func TestProviders(t *testing.T) {
	const at = "service: otel.test, port: 4317"
	for _, test := range []struct{ yaml, want string }{
		{"envoyFileAccessLog: {path: /dev/stdout, logFormat: {text: a}}", ""},
		{"envoyFileAccessLog: {path: log}", "!envoyFileAccessLog.path: not an absolute path"},
		{"envoyFileAccessLog: {logFormat: {labels: {a: '%PROTOCOL%'}}, omitEmptyValues: true}", ""},
		{"envoyFileAccessLog: {logFormat: {text: '%REQUEST%'}}",
			"!envoyFileAccessLog.logFormat.text: REQUEST"},
		{"envoyFileAccessLog: {logFormat: {labels: {a: '%NOSUCH(a)%'}}}",
			"!envoyFileAccessLog.logFormat.labels[\"a\"]: NOSUCH"},
		{"envoyHttpAls: {" + at + ", logName: a, additionalRequestHeadersToLog: [a]}", ""},
		{"envoyHttpAls: {service: a b, port: 1}", "!envoyHttpAls.service: no host name"},
		{"envoyTcpAls: {service: a.test}", "!envoyTcpAls.port: no valid port"},
		{"envoyOtelAls: {" + at + "}", ""},
		{"envoyOtelAls: {service: a/b.test, port: 70000}", "!envoyOtelAls.port: no valid port"},
		{"zipkin: {" + at + ", path: /a, timeout: 1s, headers: [{name: a, value: b}]}", ""},
		{"zipkin: {" + at + ", timeout: 0s}", "!zipkin.timeout: too short"},
		{"zipkin: {" + at + ", headers: [{name: 'a b', value: c}]}", "!zipkin.headers[0].name: no header's name"},
		{"zipkin: {" + at + ", headers: [{name: a, value: \"b\\n\"}]}", "!zipkin.headers[0].value: line break"},
		{"zipkin: {" + at + ", headers: [{name: a, envName: B}]}", "?zipkin.headers[0].envName: not supported"},
		{"datadog: {" + at + "}", ""},
		{"datadog: {port: 1}", "!datadog.service: "},
		{"skywalking: {" + at + "}", ""},
		{"skywalking: {" + at + ", accessToken: a}", "?skywalking.accessToken: no effect"},
		{"opentelemetry: {" + at + ", grpc: {timeout: 1s, initialMetadata: [{name: a, value: b}]}}", ""},
		{"opentelemetry: {" + at + ", http: {path: /v1/traces, timeout: 1s}}", ""},
		{"opentelemetry: {" + at + ", http: {path: /a, timeout: 1s}, grpc: {}}", "!opentelemetry.grpc: together"},
		{"opentelemetry: {" + at + ", dynatraceSampler: {tenant: a, clusterId: 1}}",
			"!opentelemetry.dynatraceSampler: no httpService"},
		{"opentelemetry: {" + at + ", dynatraceSampler: {tenant: a, clusterId: 1, httpService: {service: b.test, port: 1, http: {path: /, timeout: 1s}}}}", ""},
		{"prometheus: {}", ""},
		{"lightstep: {" + at + ", accessToken: a}", "?: not supported"},
		{"stackdriver: {}", "?: not supported"},
	} {
		_, problems := meshfile.Parse("mesh.yaml",
			[]byte("extensionProviders:\n- name: p\n  "+test.yaml+"\n"))
		if test.want == "" {
			if len(problems) > 0 {
				t.Errorf("%s\n got %v", test.yaml, problems)
			}
			continue
		}
		field, text, _ := strings.Cut(test.want[1:], ": ")
		field = strings.TrimSuffix("extensionProviders[0]."+field, ".")
		severity := condition.Error
		if test.want[0] == '?' {
			severity = condition.Warning
		}
		if len(problems) == 0 || problems[0].Severity != severity || problems[0].Field != field ||
			!strings.Contains(strings.Replace(problems[0].String(), "not a valid", "no valid", 1), text) {
			t.Errorf("%s\n want %s\n got  %v", test.yaml, test.want, problems)
		}
	}
}

func TestDefaultProviders(t *testing.T) {
	for yaml, want := range map[string]string{
		"defaultProviders: {accessLogging: [envoy], metrics: [prometheus]}":                                                         "",
		"defaultProviders: {tracing: [a]}":                                                                                          "there is no provider",
		"defaultProviders: {tracing: [A, b]}\nextensionProviders: [{name: a, prometheus: {}}, {name: b, prometheus: {}}]":           "only the first",
		"enableTracing: true\ndefaultConfig: {tracing: {sampling: 5, customTags: {a: {literal: {value: b}}}, maxPathTagLength: 9}}": "",
		"defaultConfig: {tracing: {sampling: 101}}":                                                                                 "no percentage",
		"defaultConfig: {tracing: {zipkin: {address: 'a:9411'}}}":                                                                   "[tracing]",
	} {
		_, problems := meshfile.Parse("mesh.yaml", []byte(yaml))
		if want == "" && len(problems) > 0 || want != "" && (len(problems) != 1 ||
			!strings.Contains(problems[0].String(), want)) {
			t.Errorf("%s\n want %q\n got  %v", yaml, want, problems)
		}
	}
}
