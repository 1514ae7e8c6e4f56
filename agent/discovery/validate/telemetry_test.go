package validate_test

import (
	"strings"
	"testing"
)

func TestTelemetry(t *testing.T) {
	te := "Telemetry"
	filter := func(expression string) string {
		return "accessLogging: [{filter: {expression: \"" + expression + "\"}}]"
	}
	tag := func(text string) string { return "tracing: [{customTags: {a: {" + text + "}}}]" }
	override := func(text string) string { return "metrics: [{overrides: [{" + text + "}]}]" }
	tags := func(text string) string { return override("tagOverrides: {a: {" + text + "}}") }
	testSpecs(t, []specCase{
		{te, "{}", "?: no effect"},
		{te, "selector: {matchLabels: {app: a}}\naccessLogging: [{providers: [{name: envoy}]}]", ""},
		{te, "accessLogging: [{disabled: true, match: {mode: CLIENT}}]", ""},
		{te, "accessLogging: [{providers: [{}]}]", "!accessLogging[0].providers[0].name: is missing"},
		{te, "accessLogging: [{providers: [{name: '" + strings.Repeat("a", 100) + "'}]}]", ""},
		{te, filter("response.code >= 400 && 'x' in request.headers"), ""},
		{te, filter("response.code >="), "!accessLogging[0].filter.expression: no CEL expression"},
		{te, filter(""), "!accessLogging[0].filter.expression: no CEL expression"},
		{te, filter(strings.Repeat("a", 4097)), "!accessLogging[0].filter.expression: longer than"},
		{te, "selector: {}\ntargetRef: {kind: Gateway, group: gateway.networking.k8s.io, name: a}\n" +
			filter("true"), "!selector: only one of"},
		{te, "tracing: [{providers: [{name: a}], randomSamplingPercentage: 100}]", ""},
		{te, "tracing: [{providers: [{name: a}, {name: b}]}]", "?tracing[0].providers: only the first"},
		{te, "tracing: [{}, {}]", "?tracing: several entries"},
		{te, "tracing: [{randomSamplingPercentage: 100.1}]",
			"!tracing[0].randomSamplingPercentage: no percentage"},
		{te, "tracing: [{randomSamplingPercentage: -1}]",
			"!tracing[0].randomSamplingPercentage: no percentage"},
		{te, tag("literal: {value: b}"), ""},
		{te, tag("header: {name: b, defaultValue: c}"), ""},
		{te, tag("environment: {name: B}"), ""},
		{te, tag("formatter: {value: '%REQ(a)%'}"), ""},
		{te, tag(""), "?tracing[0].customTags[\"a\"]: without a value"},
		{te, tag("literal: {}"), "!tracing[0].customTags[\"a\"].literal.value: is missing"},
		{te, tag("header: {}"), "!tracing[0].customTags[\"a\"].header.name: is missing"},
		{te, tag("environment: {}"), "!tracing[0].customTags[\"a\"].environment.name: is missing"},
		{te, tag("formatter: {}"), "!tracing[0].customTags[\"a\"].formatter.value: is missing"},
		{te, "tracing: [{customTags: {'': {literal: {value: b}}}}]",
			"!tracing[0].customTags[\"\"]: without a name"},
		{te, "metrics: [{providers: [{name: prometheus}], reportingInterval: 5s}]", "?metrics[0].reportingInterval: no effect"},
		{te, "metrics: [{reportingInterval: 0.1ms}]", "!metrics[0].reportingInterval: too short"},
		{te, "metrics: [{reportingInterval: 0.0001s}]", "!metrics[0].reportingInterval: too short"},
		{te, override("match: {metric: REQUEST_COUNT, mode: SERVER}, disabled: true"), ""},
		{te, override("match: {customMetric: ''}"), "!metrics[0].overrides[0].match.customMetric: empty"},
		{te, tags("value: request.host"), ""},
		{te, tags("operation: REMOVE"), ""},
		{te, tags("value: request."), "!metrics[0].overrides[0].tagOverrides[\"a\"].value: no CEL"},
		{te, override("match: {customMetric: a}"), "?metrics[0].overrides[0].match.customMetric: no effect"},
		{te, override("match: {metric: GRPC_REQUEST_MESSAGES}"),
			"?metrics[0].overrides[0].match.metric: no effect"},
		{te, tags("operation: UPSERT"), "!metrics[0].overrides[0].tagOverrides[\"a\"].value: is missing"},
		{te, tags("operation: REMOVE, value: b"),
			"!metrics[0].overrides[0].tagOverrides[\"a\"].value: a removed tag"},
	})
}
