// Package kubernetes reads configuration and services from a Kubernetes API server.
//
// Source delivers the objects of Istio's kinds, Registry the Services with their endpoints. Each is
// a feed of collections. A collection lists and watches one resource, in one namespace or in all.
// The feed sends the changes as batches; the first batch has the complete lists of all resources.
//
//	collection -- set, remove --> Source, Registry -- changed paths --> feed -- batches --> Sink
//
// An API server that has lost its data returns empty lists. So an empty list does not remove known
// objects (collection.Replace), but a removal that a watch reports does.
package kubernetes

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"outrider.org/outrider/agent/discovery/object"
)

// Options configures a Source or a Registry.
type Options struct {
	Name       string   // name of the source in paths, messages and metrics: "kubernetes"
	Kubeconfig string   // path of a kubeconfig; "": the in-cluster configuration of a pod
	Namespaces []string // namespaces to read; empty: all

	// Domain is the DNS domain of the cluster, the end of each Service's host name: cluster.local.
	// Only a Registry uses it.
	Domain string

	// WriteStatus makes a Source write to the status of each object whether the object is valid. A
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

// istioKinds returns those of Istio's kinds that affect the resources of this program.
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
