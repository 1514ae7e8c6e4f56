// Package kubernetes reads configuration and services from a Kubernetes API server.
//
// Source delivers the objects of Istio's kinds, Registry the Services with their endpoints. Both
// are a feed of collections: a collection lists and watches one resource (in one namespace, or in
// all), and the feed sends changes as batches. The first batch has the complete lists of all
// resources.
//
//	collection -- set, remove --> Source, Registry -- changed paths --> feed -- Batch --> Sink
//
// An API server that was restored from a backup, or has lost its data, lists fewer objects than
// before. So an empty list does not remove known objects (collection.Replace); removals in a watch
// are accepted.
package kubernetes

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"outrider.org/outrider/agent/discovery/object"
)

// Options configures a Source or a Registry.
type Options struct {
	Name       string   // name of the source in paths, messages and metrics: "kubernetes"
	Kubeconfig string   // path of a kubeconfig; "": that of a pod in the cluster
	Namespaces []string // namespaces to read; empty: all

	// Domain is appended to the names of Services: cluster.local. Only a Registry uses it.
	Domain string

	// WriteStatus makes a Source write the validity of each object to the object's status. A
	// Registry does not use it.
	WriteStatus bool
}

// versions lists the API versions of Istio's groups, preferred ones first.
func versions() []schema.GroupVersion {
	return []schema.GroupVersion{
		{Group: object.NetworkingGroup, Version: "v1"},
		{Group: object.NetworkingGroup, Version: "v1beta1"},
		{Group: object.NetworkingGroup, Version: "v1alpha3"},
		{Group: object.SecurityGroup, Version: "v1"},
		{Group: object.SecurityGroup, Version: "v1beta1"},
		{Group: object.TelemetryGroup, Version: "v1"},
		{Group: object.TelemetryGroup, Version: "v1alpha1"},
		{Group: object.ExtensionsGroup, Version: "v1alpha1"},
	}
}

// istioKinds returns the kinds of Istio that have an effect in this program.
func istioKinds() []object.Kind {
	var kinds []object.Kind
	for _, group := range object.Groups() {
		for _, name := range object.Kinds(group) {
			if kind := object.Kind(name); object.NewSpec(kind) != nil {
				kinds = append(kinds, kind)
			}
		}
	}
	return kinds
}
