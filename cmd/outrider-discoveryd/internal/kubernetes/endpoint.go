package kubernetes

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"outrider.org/outrider/agent/discovery/model"
)

// slice holds the fields of an EndpointSlice that the registry uses.
type slice struct {
	family    string            // address family, IPv4 or IPv6
	ports     map[string]uint32 // TCP ports by name; shared and never modified
	endpoints []endpoint        // ready endpoints
}

// endpoint is an address of a service, with its pod and node if they are known.
type endpoint struct {
	address string
	pod     string // NAMESPACE/NAME of the Pod; "": none
	node    string
}

func newSlice(o *discoveryv1.EndpointSlice) *slice {
	s := &slice{family: string(o.AddressType), ports: make(map[string]uint32, len(o.Ports)),
		endpoints: make([]endpoint, 0, len(o.Endpoints))}
	for _, port := range o.Ports {
		if port.Port == nil || port.Protocol != nil && *port.Protocol != corev1.ProtocolTCP {
			continue
		}
		name := ""
		if port.Name != nil {
			name = *port.Name
		}
		s.ports[name] = uint32(*port.Port)
	}
	for i := range o.Endpoints {
		in := &o.Endpoints[i]
		// Services with publishNotReadyAddresses need no special case: Kubernetes marks their
		// endpoints as ready, except terminating ones.
		if ready := in.Conditions.Ready; ready != nil && !*ready {
			continue
		}
		e := endpoint{}
		if in.NodeName != nil {
			e.node = *in.NodeName
		}
		if to := in.TargetRef; to != nil && to.Kind == "Pod" {
			namespace := to.Namespace
			if namespace == "" {
				namespace = o.Namespace
			}
			e.pod = namespace + "/" + to.Name
		}
		for _, address := range in.Addresses {
			e.address = address
			s.endpoints = append(s.endpoints, e)
		}
	}
	return s
}

// pod holds the fields of a Pod that the registry uses.
type pod struct {
	labels  map[string]string // labels of the Pod; never modified
	account string
	node    string
	where   string // locality in the labels; "": the pod has that of its node
}

func newPod(o *corev1.Pod) pod {
	p := pod{labels: o.Labels, account: o.Spec.ServiceAccountName, node: o.Spec.NodeName}
	for _, label := range []string{"topology.istio.io/locality", model.LocalityLabel} {
		if where, ok := o.Labels[label]; ok {
			p.where = where
			if !strings.Contains(where, "/") {
				p.where = strings.ReplaceAll(where, ".", "/")
			}
			break
		}
	}
	if _, ok := o.Labels[model.TLSModeLabel]; !ok {
		// A Pod without a sidecar does not accept mutual TLS. Its endpoint has a service account,
		// and needs this label so that proxies do not use mutual TLS nevertheless.
		p.labels = make(map[string]string, len(o.Labels)+1)
		maps.Copy(p.labels, o.Labels)
		p.labels[model.TLSModeLabel] = "disabled"
	}
	return p
}

func (p pod) equal(q pod) bool {
	return p.account == q.account && p.node == q.node && p.where == q.where &&
		maps.Equal(p.labels, q.labels)
}

// nodeLocality returns the locality of a Node as REGION/ZONE/SUBZONE, without trailing empty
// segments.
func nodeLocality(labels map[string]string) string {
	first := func(names ...string) string {
		for _, name := range names {
			if value := labels[name]; value != "" {
				return value
			}
		}
		return ""
	}
	region := first(corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaRegion)
	zone := first(corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaZone)
	return strings.TrimRight(region+"/"+zone+"/"+labels[model.TopologyLabels[2]], "/")
}

// trimPod removes the fields of a Pod that the registry does not use, to save memory while a list
// of many Pods is processed.
func trimPod(o runtime.Object) {
	if p, ok := o.(*corev1.Pod); ok {
		p.ObjectMeta = metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID,
			ResourceVersion: p.ResourceVersion, Labels: p.Labels}
		p.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName,
			ServiceAccountName: p.Spec.ServiceAccountName}
		p.Status = corev1.PodStatus{}
	}
}

// trimNode removes the fields of a Node that the registry does not use.
func trimNode(o runtime.Object) {
	if n, ok := o.(*corev1.Node); ok {
		n.ObjectMeta = metav1.ObjectMeta{Name: n.Name, UID: n.UID,
			ResourceVersion: n.ResourceVersion, Labels: n.Labels}
		n.Spec, n.Status = corev1.NodeSpec{}, corev1.NodeStatus{}
	}
}
