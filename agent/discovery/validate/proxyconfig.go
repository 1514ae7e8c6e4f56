package validate

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1beta1"

	"outrider.org/outrider/agent/discovery/object"
)

const (
	// the same limit as that of concurrency in the [envoy] section of the configuration
	mostWorkers = 1024
	// mostEnvironment bounds the variables of one object, in bytes of JSON. The variables of at
	// most four objects apply to a process. They are part of the process's note in the keeper,
	// which is limited to 64 KiB.
	mostEnvironment = 8 << 10
)

// ProxySettings returns the findings of settings of Envoy's process: its worker threads, and the
// variables of its environment.
func ProxySettings(workersField string, workers *wrapperspb.Int32Value, variablesField string,
	variables map[string]string) []object.Finding {
	c := &checker{}
	c.workers(workersField, workers)
	c.variables(variablesField, variables)
	return c.findings
}

func (c *checker) proxyConfig(p *networking.ProxyConfig) {
	labels := p.GetSelector().GetMatchLabels()
	if p.GetSelector() != nil && len(labels) == 0 {
		c.warn("selector", "has no labels, so the object is for no proxy",
			"write matchLabels, or remove it")
	}
	c.most("selector.matchLabels", len(labels), mostSelectorLabels)
	c.selector("selector.matchLabels", labels)
	c.workers("concurrency", p.Concurrency)
	c.variables("environmentVariables", p.EnvironmentVariables)
	if p.Image != nil {
		c.warn("image", "has no effect: there is no container whose image it could be",
			"remove it; \"outrider envoy use\" changes Envoy's version")
	}
}

func (c *checker) workers(field string, workers *wrapperspb.Int32Value) {
	if n := workers.GetValue(); n < 0 || n > mostWorkers {
		c.fail(field, fmt.Sprintf("%d is no number of workers", n),
			fmt.Sprintf("write 0 (one for each core) to %d", mostWorkers))
	}
}

func (c *checker) variables(field string, variables map[string]string) {
	encoded, err := json.Marshal(variables)
	if err != nil || len(encoded) > mostEnvironment {
		c.fail(field, fmt.Sprintf("has %d bytes, more than %d", len(encoded), mostEnvironment),
			"remove some")
	}
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		at := fmt.Sprintf("%s[%q]", field, name)
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			c.fail(at, fmt.Sprintf("%q is no name of a variable", name), "write it without =")
		case strings.HasPrefix(name, "LD_") || name == "GLIBC_TUNABLES":
			c.fail(at, "changes which code Envoy loads, or how", "remove it")
		case name == "PATH":
			c.fail(at, "is set by the agent", "remove it")
		case strings.Contains(variables[name], "\x00"):
			c.fail(at, "has a zero byte", "remove it")
		case strings.HasPrefix(name, "ISTIO_META_"):
			c.warn(at, "is a setting of Istio's agent, and only a variable for Envoy here",
				"write metadata in [node] of outrider.toml; [dns] and [capture] replace DNS_CAPTURE and others")
		}
	}
}
