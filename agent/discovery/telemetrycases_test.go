package discovery_test

// telemetrySets are MeshConfigs and objects of the root namespace. Each of telemetryCases is tested
// with each set.
var telemetrySets = []struct{ name, mesh, root string }{
	{"providers", telemetryProviders + `
accessLogFile: /dev/stdout
accessLogEncoding: JSON
enableTracing: false
`, ""},
	{"defaults", telemetryProviders + `
accessLogFormat: "default %REQ_WITHOUT_QUERY(:PATH)%"
defaultProviders: {accessLogging: [envoy], tracing: [otel]}
enableTracing: true
defaultConfig:
  tracing:
    sampling: 20
    maxPathTagLength: 99
    customTags: {c: {literal: {value: d}}, e: {environment: {name: E}}, h: {header: {name: x-h}}}
`, ""},
	{"root", telemetryProviders + `
accessLogFile: /dev/stderr
enableTracing: true
`, `{accessLogging: [{providers: [{name: text}]}, {match: {mode: SERVER}, providers: [{name: json}],
filter: {expression: response.code >= 500}}],
tracing: [{providers: [{name: zipkin}], randomSamplingPercentage: 7}]}`},
}

// telemetryProviders are the extensionProviders that telemetrySets use.
const telemetryProviders = `
extensionProviders:
- name: text
  envoyFileAccessLog: {path: /dev/stdout, logFormat: {text: "%REQ(:PATH)% %RESPONSE_CODE%"}}
- name: plain
  envoyFileAccessLog: {path: /dev/stderr, omitEmptyValues: true}
- name: json
  envoyFileAccessLog:
    path: /dev/stdout
    logFormat: {labels: {path: "%REQ_WITHOUT_QUERY(:PATH)%", code: "%RESPONSE_CODE%"}}
- name: nolabels
  envoyFileAccessLog: {path: /dev/stdout, logFormat: {labels: {}}}
- name: als
  envoyHttpAls: {service: logs/als.test, port: 9000, additionalRequestHeadersToLog: [a],
    additionalResponseHeadersToLog: [b], additionalResponseTrailersToLog: [c]}
- name: named
  envoyHttpAls: {service: als.test, port: 9000, logName: mine, filterStateObjectsToLog: [s]}
- name: tcp
  envoyTcpAls: {service: logs/als.test, port: 9000}
- name: otellog
  envoyOtelAls: {service: logs/otel.test, port: 4317}
- name: otellabels
  envoyOtelAls: {service: logs/otel.test, port: 4317, logName: mine,
    logFormat: {text: "%REQ_WITHOUT_QUERY(:PATH)%", labels: {b: "%PROTOCOL%", a: x}}}
- name: lost
  envoyHttpAls: {service: logs/nowhere.test, port: 9000}
- name: otel
  opentelemetry: {service: logs/otel.test, port: 4317, maxTagLength: 56}
- name: otelgrpc
  opentelemetry: {service: logs/otel.test, port: 4317,
    grpc: {timeout: 3s, initialMetadata: [{name: a, value: b}]},
    resourceDetectors: {environment: {}, dynatrace: {}}}
- name: otelhttp
  opentelemetry: {service: otel.test, port: 4318,
    http: {path: /v1/traces, timeout: 2s, headers: [{name: a, value: b}]}}
- name: dynatrace
  opentelemetry: {service: otel.test, port: 4318,
    http: {path: /v1/traces, timeout: 2s, headers: [{name: a, value: b}]},
    dynatraceSampler: {tenant: t, clusterId: 7, rootSpansPerMinute: 9}}
- name: dynatraceown
  opentelemetry: {service: otel.test, port: 4317,
    dynatraceSampler: {tenant: t, clusterId: 7,
      httpService: {service: logs/als.test, port: 9000, http: {path: /s, timeout: 1s}}}}
- name: semantic
  opentelemetry: {service: otel.test, port: 4317,
    serviceAttributeEnrichment: OTEL_SEMANTIC_CONVENTIONS}
- name: zipkin
  zipkin: {service: logs/zipkin.test, port: 9411, maxTagLength: 10}
- name: zipkinall
  zipkin: {service: zipkin.test, port: 9411, enable64bitTraceId: true, path: /x, timeout: 3s,
    traceContextOption: USE_B3_WITH_W3C_PROPAGATION, headers: [{name: a, value: b}]}
- name: datadog
  datadog: {service: zipkin.test, port: 9411, maxTagLength: 11}
- name: skywalking
  skywalking: {service: otel.test, port: 4317}
- name: losttrace
  zipkin: {service: nowhere.test, port: 9411}
`

const telemetryServices = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: logs, namespace: logs}
spec:
  hosts: [als.test, otel.test, zipkin.test]
  resolution: STATIC
  ports:
  - {number: 9000, name: grpc, protocol: GRPC}
  - {number: 4317, name: grpc-otel, protocol: GRPC}
  - {number: 4318, name: http-otel, protocol: HTTP}
  - {number: 9411, name: http-zipkin, protocol: HTTP}
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: logs}
spec:
  hosts: [web.test]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: logs}
spec:
  selector: {app: edge}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]
`

const chosenWorkload = "selector: {matchLabels: {app: edge}}, "

// telemetryCases are the specs of the Telemetries of one namespace, oldest first.
var telemetryCases = [][]string{
	{},
	{"accessLogging: [{providers: [{name: text}]}]"},
	{"accessLogging: [{providers: [{name: TEXT}]}]"},
	{"accessLogging: [{providers: [{name: plain}]}]"},
	{"accessLogging: [{providers: [{name: json}]}]"},
	{"accessLogging: [{providers: [{name: nolabels}]}]"},
	{"accessLogging: [{providers: [{name: envoy}]}]"},
	{"accessLogging: [{providers: [{name: als}]}]"},
	{"accessLogging: [{providers: [{name: named}]}]"},
	{"accessLogging: [{providers: [{name: tcp}]}]"},
	{"accessLogging: [{providers: [{name: otellog}]}]"},
	{"accessLogging: [{providers: [{name: otellabels}]}]"},
	{"accessLogging: [{providers: [{name: lost}]}]"},
	{"accessLogging: [{providers: [{name: lost}, {name: text}]}]"},
	{"accessLogging: [{providers: [{name: none}]}]"},
	{"accessLogging: [{providers: [{name: zipkin}]}]"},
	{"accessLogging: [{providers: [{name: text}, {name: als}, {name: json}]}]"},
	{"accessLogging: [{disabled: true}]"},
	{"accessLogging: [{disabled: true, providers: [{name: text}]}]"},
	{"accessLogging: [{}]"},
	{"accessLogging: [{filter: {expression: 'response.code >= 400'}}]"},
	{"accessLogging: [{providers: [{name: text}], filter: {expression: 'response.code >= 400'}}]"},
	{"accessLogging: [{providers: [{name: text}], match: {mode: CLIENT}}]"},
	{"accessLogging: [{providers: [{name: text}], match: {mode: SERVER}}]"},
	{"accessLogging: [{providers: [{name: text}], match: {mode: CLIENT_AND_SERVER}}]"},
	{"accessLogging: [{providers: [{name: text}], match: {mode: CLIENT}}, " +
		"{providers: [{name: json}], match: {mode: SERVER}, filter: {expression: 'true'}}]"},
	{"accessLogging: [{providers: [{name: text}], filter: {expression: 'true'}}, " +
		"{providers: [{name: text}], match: {mode: SERVER}, disabled: true}]"},
	{"accessLogging: [{providers: [{name: text}]}]",
		chosenWorkload + "accessLogging: [{providers: [{name: json}]}]"},
	{"accessLogging: [{providers: [{name: text}]}]", chosenWorkload + "accessLogging: [{disabled: true}]"},
	{"accessLogging: [{providers: [{name: text}]}]",
		chosenWorkload + "accessLogging: [{match: {mode: CLIENT}, disabled: true}]"},
	{"selector: {matchLabels: {app: other}}, accessLogging: [{providers: [{name: text}]}]"},
	{"accessLogging: [{providers: [{name: text}]}]", "accessLogging: [{providers: [{name: json}]}]"},
	{chosenWorkload + "accessLogging: [{providers: [{name: text}]}]",
		chosenWorkload + "accessLogging: [{providers: [{name: json}], filter: {expression: 'false'}}]"},
	{"targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: edge}], " +
		"accessLogging: [{providers: [{name: text}]}]"},

	{"tracing: [{providers: [{name: otel}]}]"},
	{"tracing: [{providers: [{name: otelgrpc}]}]"},
	{"tracing: [{providers: [{name: otelhttp}]}]"},
	{"tracing: [{providers: [{name: dynatrace}], randomSamplingPercentage: 3}]"},
	{"tracing: [{providers: [{name: dynatraceown}]}]"},
	{"tracing: [{providers: [{name: semantic}]}]"},
	{"tracing: [{providers: [{name: zipkin}]}]"},
	{"tracing: [{providers: [{name: zipkinall}]}]"},
	{"tracing: [{providers: [{name: datadog}]}]"},
	{"tracing: [{providers: [{name: skywalking}]}]"},
	{"tracing: [{providers: [{name: losttrace}]}]"},
	{"tracing: [{providers: [{name: none}]}]"},
	{"tracing: [{providers: [{name: text}]}]"},
	{"tracing: [{randomSamplingPercentage: 50}]"},
	{"tracing: [{providers: [{name: zipkin}], randomSamplingPercentage: 0}]"},
	{"tracing: [{providers: [{name: zipkin}], randomSamplingPercentage: 33.3}]"},
	{"tracing: [{disableSpanReporting: true}]"},
	{"tracing: [{providers: [{name: zipkin}], match: {mode: CLIENT}}]"},
	{"tracing: [{providers: [{name: zipkin}], match: {mode: SERVER}, disableSpanReporting: true}]"},
	{"tracing: [{providers: [{name: zipkin}]}, {match: {mode: SERVER}, providers: [{name: datadog}]}]"},
	{"tracing: [{providers: [{name: zipkin}], useRequestIdForTraceSampling: false}]"},
	{"tracing: [{providers: [{name: zipkin}], enableIstioTags: false}]"},
	{"tracing: [{providers: [{name: zipkin}], disableContextPropagation: true}]"},
	{"tracing: [{providers: [{name: zipkin}], customTags: {b: {literal: {value: v}}, " +
		"a: {header: {name: x-a, defaultValue: d}}, z: {environment: {name: E, defaultValue: d}}, " +
		"f: {formatter: {value: '%REQ(x-f)%'}}}}]"},
	{"tracing: [{providers: [{name: zipkin}], customTags: {b: {literal: {value: v}}}}]",
		chosenWorkload + "tracing: [{randomSamplingPercentage: 9, customTags: {c: {literal: {value: w}}}}]"},
	{"tracing: [{providers: [{name: zipkin}]}]", chosenWorkload + "tracing: [{providers: [{name: datadog}]}]"},
	{"accessLogging: [{providers: [{name: text}]}], tracing: [{providers: [{name: zipkin}]}]"},
}
