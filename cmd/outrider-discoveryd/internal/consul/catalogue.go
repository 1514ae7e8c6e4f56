package consul

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"

	"outrider.org/outrider/agent/discovery/model"

	"outrider.org/outrider/cmd/outrider-discoveryd/internal/registration"
)

// nodePrefix is the prefix of the Consul nodes that represent workloads. An ACL policy can permit
// exactly these nodes with node_prefix. The names PREFIX.NAMESPACE.NAME are unique, because
// namespaces contain no dot.
const nodePrefix = "outrider."

const (
	checkID = "outrider:health"
	// metadata key that Consul's own integrations set, and that its UI shows
	metaFrom = "external-source"
	maxMeta  = 512 // maximum length of a metadata value, in bytes
	// serviceAnnotation is the annotation with the name of the workload's service in Consul.
	serviceAnnotation = "outrider.org/consul-service"
	// service instances of one workload; a transaction has at most 128 operations
	maxPorts = 32
)

// nodeName returns the name of a workload's node in the catalogue.
func (w *workload) nodeName() string {
	return nodePrefix + w.Metadata.Namespace + "." + w.Metadata.Name
}

// operations returns the operations that register the workload in the catalogue: a node, a service
// instance for each port, and a check of the node with the reported health.
func (w *workload) operations() api.TxnOps {
	c := w.connection()
	meta := map[string]string{metaFrom: "outrider", "outrider-namespace": w.Metadata.Namespace,
		"outrider-workload-entry":  w.Metadata.Name,
		"outrider-group":           w.Metadata.Annotations[registration.GroupAnnotation],
		"outrider-network":         w.Spec.Network,
		"outrider-controller":      c.Controller,
		"outrider-connected-at":    formatTime(c.ConnectedAt),
		"outrider-disconnected-at": formatTime(c.DisconnectedAt)}
	maps.DeleteFunc(meta, func(_, value string) bool { return value == "" || len(value) > maxMeta })
	node := w.nodeName()
	ops := api.TxnOps{{Node: &api.NodeTxnOp{Verb: api.NodeSet,
		Node: api.Node{Node: node, Address: w.Spec.Address, Meta: meta}}}}
	for _, s := range w.services() {
		ops = append(ops, &api.TxnOp{Service: &api.ServiceTxnOp{Verb: api.ServiceSet, Node: node,
			Service: s}})
	}
	status, output := w.check()
	if c.ConnectedAt.IsZero() {
		output = fmt.Sprintf("not connected since %s, before: %s", formatTime(c.DisconnectedAt), output)
	}
	return append(ops, &api.TxnOp{Check: &api.CheckTxnOp{Verb: api.CheckSet,
		Check: api.HealthCheck{Node: node, CheckID: checkID, Name: "health reported by the agent",
			Status: status, Output: output}}})
}

// check returns the state and the output of the workload's check. As in Istio, a workload whose
// agent checks its health is critical before the first report.
func (w *workload) check() (status, output string) {
	health := w.health()
	switch {
	case w.Metadata.Annotations[model.HealthAnnotation] != "true":
		return api.HealthPassing, "connected"
	case health == nil:
		return api.HealthCritical, "the agent has not reported the health yet"
	case health.Healthy:
		return api.HealthPassing, cmp.Or(health.Message, "healthy")
	}
	return api.HealthCritical, health.Message
}

// services returns a service instance for each port. The instance of the lowest port belongs to the
// workload's service. The others belong to services with the name SERVICE-PORTNAME. A workload
// without ports has one instance without a port.
func (w *workload) services() []api.AgentService {
	base := w.serviceName()
	ports := slices.SortedFunc(maps.Keys(w.Spec.Ports), func(a, b string) int {
		return cmp.Or(cmp.Compare(w.Spec.Ports[a], w.Spec.Ports[b]), cmp.Compare(a, b))
	})
	if len(ports) == 0 {
		return []api.AgentService{w.service(base, "")}
	}
	all := make([]api.AgentService, 0, len(ports))
	for i, port := range ports[:min(len(ports), maxPorts)] {
		name := base
		if i > 0 {
			name += "-" + port
		}
		if isHost(name) {
			all = append(all, w.service(name, port))
		}
	}
	return all
}

// service returns the service instance of a port. Its tags contain the labels of the workload, from
// which the registry restores the labels of the endpoint.
func (w *workload) service(name, port string) api.AgentService {
	weight := int(min(max(w.Spec.Weight, 1), maxWeight))
	s := api.AgentService{ID: name, Service: name, Port: int(w.Spec.Ports[port]),
		Meta:    map[string]string{metaFrom: "outrider"},
		Weights: api.AgentWeights{Passing: weight, Warning: weight}}
	if w.Spec.ServiceAccount != "" {
		s.Meta[metaAccount] = w.Spec.ServiceAccount
	}
	protocol, _, _ := strings.Cut(port, "-")
	if _, ok := model.ParseProtocol(protocol, ""); ok && protocol != "" {
		s.Meta[metaProtocol] = protocol
	}
	if w.Spec.Locality != "" {
		s.Meta[model.LocalityLabel] = strings.ReplaceAll(w.Spec.Locality, "/", ".")
	}
	labels := maps.Clone(w.Metadata.Labels)
	if w.Spec.Network != "" {
		if labels == nil {
			labels = map[string]string{}
		}
		labels[model.NetworkLabel] = w.Spec.Network
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if len(s.Tags) < maxLabels && isLabel(key, labels[key]) {
			s.Tags = append(s.Tags, key+"="+labels[key])
		}
	}
	return s
}

// serviceName returns the name of the workload's service. It comes from the WorkloadGroup: if a
// workload could set it, the workload could join any service in Consul.
func (w *workload) serviceName() string {
	return cmp.Or(w.Metadata.Annotations[serviceAnnotation],
		w.Metadata.Annotations[registration.GroupAnnotation])
}

// serviceOf returns Istio's canonical service name of the workloads of a WorkloadGroup, or the name
// of the group if its labels contain none.
func serviceOf(g *registration.WorkloadGroup) string {
	metadata, template := g.Spec.GetMetadata().GetLabels(), g.Spec.GetTemplate().GetLabels()
	for _, label := range []string{"service.istio.io/canonical-name", "app.kubernetes.io/name",
		"app"} {
		if name := cmp.Or(metadata[label], template[label]); name != "" && isHost(name) {
			return name
		}
	}
	return g.Name
}
