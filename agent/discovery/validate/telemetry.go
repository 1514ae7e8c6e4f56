package validate

import (
	"fmt"
	"maps"
	"slices"
	"time"

	telemetry "istio.io/api/telemetry/v1alpha1"
)

const (
	// Limits for one object. Istio has none, but each entry becomes a part of every listener.
	mostLogs      = 64
	mostTags      = 128
	longestFilter = 4096
)

func (c *checker) telemetry(t *telemetry.Telemetry) {
	c.targeted(t)
	if len(t.AccessLogging)+len(t.Tracing)+len(t.Metrics) == 0 {
		c.warn("", "the Telemetry has neither accessLogging nor tracing nor metrics, and no effect",
			"add one, or remove the object")
	}
	c.most("accessLogging", len(t.AccessLogging), mostLogs)
	for i, log := range t.AccessLogging {
		field := fmt.Sprintf("accessLogging[%d]", i)
		c.telemetryProviders(field, log.GetProviders())
		if filter := log.GetFilter(); filter != nil {
			c.longest(field+".filter.expression", filter.Expression, longestFilter)
			if err := checkCEL(filter.Expression); err != nil {
				c.fail(field+".filter.expression", "is no CEL expression: "+err.Error(),
					"write one such as response.code >= 400")
			}
		}
	}
	if len(t.Tracing) > 1 {
		c.warn("tracing", "has several entries: later ones override earlier ones field by field",
			"write one, or one for each match.mode")
	}
	c.most("tracing", len(t.Tracing), mostLogs)
	for i, tracing := range t.Tracing {
		c.tracing(fmt.Sprintf("tracing[%d]", i), tracing)
	}
	c.most("metrics", len(t.Metrics), mostLogs)
	for i, metrics := range t.Metrics {
		c.metrics(fmt.Sprintf("metrics[%d]", i), metrics)
	}
}

func (c *checker) telemetryProviders(field string, providers []*telemetry.ProviderRef) {
	c.most(field+".providers", len(providers), mostLogs)
	for i, p := range providers {
		if p.GetName() == "" {
			c.fail(fmt.Sprintf("%s.providers[%d].name", field, i), "is missing",
				"name a provider of extensionProviders in MeshConfig")
		}
	}
}

func (c *checker) tracing(field string, t *telemetry.Tracing) {
	c.telemetryProviders(field, t.GetProviders())
	if len(t.GetProviders()) > 1 {
		c.warn(field+".providers", "only the first provider has an effect", "remove the others")
	}
	if share := t.GetRandomSamplingPercentage(); share != nil &&
		!(share.Value >= 0 && share.Value <= 100) {
		c.fail(field+".randomSamplingPercentage", fmt.Sprintf("%v is no percentage", share.Value),
			"write a number from 0 to 100")
	}
	c.most(field+".customTags", len(t.GetCustomTags()), mostTags)
	for _, name := range slices.Sorted(maps.Keys(t.GetCustomTags())) {
		at := fmt.Sprintf("%s.customTags[%q]", field, name)
		if name == "" {
			c.fail(at, "a tag without a name", "write its name")
		}
		c.customTag(at, t.CustomTags[name])
	}
}

func (c *checker) customTag(field string, tag *telemetry.Tracing_CustomTag) {
	missing := func(part, text string) {
		if text == "" {
			c.fail(field+"."+part, "is missing", "write it")
		}
	}
	switch of := tag.GetType().(type) {
	case *telemetry.Tracing_CustomTag_Literal:
		missing("literal.value", of.Literal.GetValue())
	case *telemetry.Tracing_CustomTag_Header:
		missing("header.name", of.Header.GetName())
	case *telemetry.Tracing_CustomTag_Environment:
		missing("environment.name", of.Environment.GetName())
	case *telemetry.Tracing_CustomTag_Formatter:
		missing("formatter.value", of.Formatter.GetValue())
	case nil:
		if tag == nil {
			c.fail(field, "a tag without a value", "write literal, header, environment or formatter")
			return
		}
		c.warn(field, "a tag without a value has no effect",
			"write literal, header, environment or formatter")
	}
}

func (c *checker) metrics(field string, m *telemetry.Metrics) {
	c.telemetryProviders(field, m.GetProviders())
	if d := m.GetReportingInterval(); d != nil && d.AsDuration() < time.Millisecond {
		c.fail(field+".reportingInterval", fmt.Sprintf("%v is too short", d.AsDuration()),
			"write at least 1ms")
	} else if d != nil {
		c.warn(field+".reportingInterval", "has no effect: connections are counted when they open "+
			"and when they end", "remove it")
	}
	c.most(field+".overrides", len(m.GetOverrides()), mostTags)
	for i, o := range m.GetOverrides() {
		at := fmt.Sprintf("%s.overrides[%d]", field, i)
		custom, is := o.GetMatch().GetMetricMatch().(*telemetry.MetricSelector_CustomMetric)
		if is && custom.CustomMetric == "" {
			c.fail(at+".match.customMetric", "is empty", "write the name of the metric")
		} else if is {
			c.warn(at+".match.customMetric", "has no effect: a Telemetry defines no metric",
				"write one of Istio's as metric, such as REQUEST_COUNT")
		}
		switch o.GetMatch().GetMetric() {
		case telemetry.MetricSelector_GRPC_REQUEST_MESSAGES,
			telemetry.MetricSelector_GRPC_RESPONSE_MESSAGES:
			c.warn(at+".match.metric", "has no effect: Envoy cannot count the messages of gRPC",
				"remove the override")
		}
		c.most(at+".tagOverrides", len(o.GetTagOverrides()), mostTags)
		for _, name := range slices.Sorted(maps.Keys(o.GetTagOverrides())) {
			tag := o.TagOverrides[name]
			field := fmt.Sprintf("%s.tagOverrides[%q]", at, name)
			switch {
			case tag == nil:
				c.fail(field, "a tag without a value", "write value, or operation: REMOVE")
			case tag.Operation == telemetry.MetricsOverrides_TagOverride_UPSERT && tag.Value == "":
				c.fail(field+".value", "is missing", "write an expression, or operation: REMOVE")
			case tag.Operation == telemetry.MetricsOverrides_TagOverride_REMOVE && tag.Value != "":
				c.fail(field+".value", "a removed tag has no value", "remove it")
			case tag.Value != "":
				c.longest(field+".value", tag.Value, longestFilter)
				if err := checkCEL(tag.Value); err != nil {
					c.fail(field+".value", "is no CEL expression: "+err.Error(),
						"write one such as request.host, or a text in quotes")
				}
			}
		}
	}
}
