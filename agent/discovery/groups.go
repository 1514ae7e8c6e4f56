package discovery

import (
	"fmt"
	"maps"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// Workload describes this host's workload, if it registers itself in a WorkloadGroup.
type Workload struct {
	Group          string // name of its WorkloadGroup; "": it does not register itself
	ServiceAccount string
	Network        string
	Labels         map[string]string
}

// WorkloadGroup returns the WorkloadGroup in force with a name, nil if there is none. The caller
// must not modify it.
func (s *Server) WorkloadGroup(namespace, name string) *networking.WorkloadGroup {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.config.group(namespace, name)
	if o == nil {
		return nil
	}
	return o.Spec.(*networking.WorkloadGroup)
}

func (c *configuration) group(namespace, name string) *object.Object {
	return c.groups[object.Key{Kind: object.WorkloadGroup, Namespace: namespace, Name: name}]
}

// groupProblems reports differences between this host's WorkloadGroup and the host's node. Callers
// hold mu.
func (s *Server) groupProblems() (problems []Problem) {
	w := s.settings.Workload
	o := s.config.group(s.settings.Namespace, w.Group)
	if w.Group == "" || o == nil {
		return nil
	}
	differs := func(field, key, group, node string) {
		problems = append(problems, o.Warning(field, fmt.Sprintf(
			"this host registers with the group, and its %s is %q, not %q", key, node, group),
			"write the same in both; the group's is that of the registered WorkloadEntry"))
	}
	spec := o.Spec.(*networking.WorkloadGroup)
	labels := func(field string, of map[string]string) {
		for _, key := range slices.Sorted(maps.Keys(of)) {
			if of[key] != w.Labels[key] {
				differs(fmt.Sprintf("%s[%q]", field, key), fmt.Sprintf("[node] labels %q", key),
					of[key], w.Labels[key])
			}
		}
	}
	labels("metadata.labels", spec.Metadata.GetLabels())
	labels("template.labels", spec.Template.GetLabels())
	if account := spec.Template.GetServiceAccount(); account != "" && account != w.ServiceAccount {
		differs("template.serviceAccount", "[node] service_account", account, w.ServiceAccount)
	}
	if network := spec.Template.GetNetwork(); network != "" && network != w.Network {
		differs("template.network", "[node] network", network, w.Network)
	}
	return problems
}
