package discovery

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/explain"
	"outrider.org/outrider/agent/discovery/explain/answer"
	"outrider.org/outrider/agent/discovery/model"
)

// ProxySettings are what the mesh configuration sets for the process of a proxy.
type ProxySettings = model.ProxySettings

// ProxySettings returns the settings of a proxy with these labels in a namespace. A changed file
// has an effect on them once its path was received from Options.ChangedPaths, or after Rescan.
func (s *Server) ProxySettings(namespace string, labels map[string]string) ProxySettings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.config.world.ProxySettings(model.Node{Namespace: namespace, Labels: labels})
}

// ProxySettingsTextsByFile returns, by file, the settings on which ProxySettings depends, as text.
// If the result of ProxySettings changes for any proxy, the text of at least one file has changed.
func (s *Server) ProxySettingsTextsByFile() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	inputs := s.config.world.ProxyConfigTextsByFile()
	if m := s.mesh; m.Concurrency != nil {
		inputs[s.settings.MeshConfigFile] += fmt.Sprint(*m.Concurrency, " ")
	}
	if m := s.mesh; len(m.ProxyEnvironment) > 0 {
		inputs[s.settings.MeshConfigFile] += fmt.Sprintf("%q", m.ProxyEnvironment)
	}
	return inputs
}

const remoteFix = "set [envoy] concurrency in outrider.toml of the hosts"

// proxyProblems returns warnings about settings of Envoy's process that have no effect. Callers
// hold mu.
func (s *Server) proxyProblems() []Problem {
	if m := s.mesh; !s.options.FilesAreLocal {
		if m.Concurrency == nil && len(m.ProxyEnvironment) == 0 {
			return nil
		}
		return []Problem{{File: s.settings.MeshConfigFile, Line: 1, Field: "defaultConfig",
			Severity: condition.Warning, Message: "concurrency and proxyMetadata have no effect: the " +
				"processes of proxies are those of their hosts", Fix: remoteFix}}
	}
	return shadowedProxyConfigs(s.config.world, model.Node{Namespace: s.config.namespace,
		Labels: s.settings.Workload.Labels})
}

func shadowedProxyConfigs(world *model.Mesh, node model.Node) (problems []Problem) {
	for o, by := range world.ShadowedProxyConfigs(node) {
		problems = append(problems, o.Warning("", fmt.Sprintf("has no effect: %s at %s is for the "+
			"same proxies, is older and takes precedence", by.Key, by.Position()), "remove one of them"))
	}
	return problems
}

// withProcess adds the settings of the proxy's process to an explanation, as the first step, if
// ProxyConfigs set any.
func withProcess(to explain.Answer, settings ProxySettings) explain.Answer {
	if len(settings.Objects) == 0 {
		return to
	}
	step := answer.Step{Kind: "process"}
	if n := settings.Concurrency; n != nil && *n == 0 {
		step.Facts = append(step.Facts, "one worker for each core, unless [envoy] concurrency is set")
	} else if n != nil {
		step.Facts = append(step.Facts,
			fmt.Sprintf("%d workers, unless [envoy] concurrency is set", *n))
	}
	if names := slices.Sorted(maps.Keys(settings.Environment)); len(names) > 0 {
		step.Facts = append(step.Facts, "variables of its environment: "+strings.Join(names, ", "))
	}
	for _, o := range slices.Backward(settings.Objects) {
		step.Origins = append(step.Origins, o.Origin())
	}
	to.Steps = append([]answer.Step{step}, to.Steps...)
	return to
}
