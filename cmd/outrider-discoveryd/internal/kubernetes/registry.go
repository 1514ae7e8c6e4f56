package kubernetes

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
)

// Registry delivers each Service with its endpoints, as ServiceEntries. A change of an
// EndpointSlice changes only the ServiceEntries of its Service.
type Registry struct {
	feed
	domain string
	// by NAMESPACE/NAME; also contains Services of which only EndpointSlices are known
	services map[string]*service
	slices   map[string]string // key of the Service that each EndpointSlice belongs to
	pods     map[string]pod    // by NAMESPACE/NAME
	// keys of the Services that have, or had, an endpoint in a Pod, by the key of the Pod
	users map[string]map[string]struct{}
	nodes map[string]string // locality of each Node, by its name
	sent  int
}

// service is a Service with its endpoints.
type service struct {
	spec    *spec // nil: EndpointSlices exist, but the Service does not
	slices  map[string]*slice
	objects []*object.Object // ServiceEntries in the last batch
}

// NewRegistry returns a registry. Its only error is a failure to register the Kubernetes types.
func NewRegistry(options Options, sink source.Sink) (*Registry, error) {
	at, err := newConnection(options.Kubeconfig)
	if err != nil {
		return nil, err
	}
	r := &Registry{domain: options.Domain, services: map[string]*service{},
		slices: map[string]string{}, pods: map[string]pod{},
		users: map[string]map[string]struct{}{}, nodes: map[string]string{}}
	r.feed = newFeed(options.Name, at, r, sink)
	core := corev1.SchemeGroupVersion
	for _, namespace := range orAll(options.Namespaces) {
		s := newCollection(&r.feed, "Service", namespace)
		s.resource = core.WithResource("services")
		e := newCollection(&r.feed, "EndpointSlice", namespace)
		e.resource = discoveryv1.SchemeGroupVersion.WithResource("endpointslices")
		p := newCollection(&r.feed, "Pod", namespace)
		p.resource, p.trim = core.WithResource("pods"), trimPod
		r.collections = append(r.collections, s, e, p)
	}
	n := newCollection(&r.feed, "Node", "")
	n.resource, n.optional, n.trim = core.WithResource("nodes"), true, trimNode
	r.collections = append(r.collections, n)
	return r, nil
}

func (r *Registry) path(key string) string { return r.name + ":Service/" + key }

func (r *Registry) set(_ *collection, key string, o runtime.Object) {
	switch o := o.(type) {
	case *corev1.Service:
		r.service(key).spec = newSpec(o, r.domain)
		r.change(key)
	case *discoveryv1.EndpointSlice:
		r.setSlice(key, o)
	case *corev1.Pod:
		if p := newPod(o); !p.equal(r.pods[key]) {
			r.pods[key] = p
			r.changeUsers(key)
		}
	case *corev1.Node:
		if where := nodeLocality(o.Labels); where != r.nodes[o.Name] {
			r.nodes[o.Name] = where
			r.changeNode(o.Name)
		}
	}
}

func (r *Registry) remove(c *collection, key string) {
	switch c.kind {
	case "Service":
		r.service(key).spec = nil
		r.change(key)
	case "EndpointSlice":
		r.removeSlice(key)
	case "Pod":
		delete(r.pods, key)
		r.changeUsers(key)
	case "Node":
		name := key[1:] // the key of a Node, which has no namespace, is /NAME
		delete(r.nodes, name)
		r.changeNode(name)
	}
}

func (r *Registry) service(key string) *service {
	s := r.services[key]
	if s == nil {
		s = &service{slices: map[string]*slice{}}
		r.services[key] = s
	}
	return s
}

// setSlice processes an EndpointSlice. The label kubernetes.io/service-name contains its Service.
func (r *Registry) setSlice(key string, o *discoveryv1.EndpointSlice) {
	name := o.Labels[discoveryv1.LabelServiceName]
	owner := o.Namespace + "/" + name
	if r.slices[key] != owner {
		r.removeSlice(key)
	}
	if name == "" || o.AddressType == discoveryv1.AddressTypeFQDN {
		return
	}
	next := newSlice(o)
	r.slices[key] = owner
	r.service(owner).slices[key] = next
	for _, e := range next.endpoints {
		if e.pod == "" {
			continue
		}
		if r.users[e.pod] == nil {
			r.users[e.pod] = map[string]struct{}{}
		}
		r.users[e.pod][owner] = struct{}{}
	}
	r.change(owner)
}

func (r *Registry) removeSlice(key string) {
	if owner, ok := r.slices[key]; ok {
		delete(r.slices, key)
		delete(r.service(owner).slices, key)
		r.change(owner)
	}
}

// changeUsers marks the Services that have an endpoint in a Pod as changed.
func (r *Registry) changeUsers(pod string) {
	for owner := range r.users[pod] {
		if s := r.services[owner]; s != nil && s.has(func(e *endpoint) bool {
			return e.pod == pod
		}) {
			r.change(owner)
			continue
		}
		delete(r.users[pod], owner)
	}
	if _, exists := r.pods[pod]; !exists && len(r.users[pod]) == 0 {
		delete(r.users, pod)
	}
}

// changeNode marks the Services that have an endpoint on a Node as changed. It needs no index,
// because the localities of nodes rarely change.
func (r *Registry) changeNode(name string) {
	if !r.complete {
		return // the first batch contains all Services
	}
	for key, s := range r.services {
		if s.has(func(e *endpoint) bool { return e.node == name }) {
			r.change(key)
		}
	}
}

// has reports whether meets returns true for an endpoint of the service.
func (s *service) has(meets func(*endpoint) bool) bool {
	for _, slice := range s.slices {
		for i := range slice.endpoints {
			if meets(&slice.endpoints[i]) {
				return true
			}
		}
	}
	return false
}

func (r *Registry) input(key string) (store.SourceInput, bool) {
	s := r.services[key]
	if s == nil {
		return store.SourceInput{}, false
	}
	path := r.path(key)
	var next []*object.Object
	if s.spec != nil {
		next = r.entries(path, s)
	}
	same := slices.EqualFunc(s.objects, next, object.Equal)
	r.sent += min(len(next), 1) - min(len(s.objects), 1)
	s.objects = next
	if s.spec == nil && len(s.slices) == 0 {
		delete(r.services, key)
	}
	return store.SourceInput{Path: path, Objects: next}, !same
}

func (r *Registry) count() int { return r.sent }

// sortedSlices returns the EndpointSlices sorted by name, those of the Service's own address family
// first.
func (s *service) sortedSlices() []*slice {
	var first, others []*slice
	for _, name := range slices.Sorted(maps.Keys(s.slices)) {
		if one := s.slices[name]; one.family == s.spec.family {
			first = append(first, one)
		} else {
			others = append(others, one)
		}
	}
	return append(first, others...)
}
