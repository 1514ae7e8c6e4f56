package model

import (
	"fmt"
	"maps"
	"slices"

	networking "istio.io/api/networking/v1beta1"

	"outrider.org/outrider/agent/discovery/object"
)

// ProxySettings are the settings of a proxy's process in the mesh configuration.
type ProxySettings struct {
	Concurrency *int32            // worker threads; 0: one for each core; nil: not set
	Environment map[string]string // variables of the environment by name
	Objects     []*object.Object  // the ProxyConfigs that apply, in ascending precedence
}

// ProxySettings returns the settings of a proxy, merged as in Istio: each field and each
// environment variable of a ProxyConfig overrides the value of lower precedence. MeshConfig has the
// lowest precedence.
func (w *Mesh) ProxySettings(node Node) ProxySettings {
	s := ProxySettings{Concurrency: w.mesh.Concurrency, Environment: map[string]string{},
		Objects: w.appliedProxyConfigs(node)}
	maps.Copy(s.Environment, w.mesh.ProxyEnvironment)
	for _, o := range s.Objects {
		spec := o.Spec.(*networking.ProxyConfig)
		if spec.Concurrency != nil {
			s.Concurrency = &spec.Concurrency.Value
		}
		maps.Copy(s.Environment, spec.EnvironmentVariables)
	}
	return s
}

// ProxyConfigTextsByFile returns a text for each file with ProxyConfigs, by path. The text differs
// after each change of a ProxyConfig in the file.
func (w *Mesh) ProxyConfigTextsByFile() map[string]string {
	texts := map[string]string{}
	for _, namespace := range slices.Sorted(maps.Keys(w.proxyConfigs)) {
		for _, o := range w.proxyConfigs[namespace] {
			texts[o.File] += fmt.Sprintf("%s %v %q\n", o.Key, o.Created,
				object.EncodeDeterministic(o.Spec))
		}
	}
	return texts
}

// appliedProxyConfigs returns the ProxyConfigs that apply to a proxy, in ascending precedence: the
// oldest one without a selector in the root namespace, the oldest one without a selector in the
// proxy's namespace, and the oldest one in the proxy's namespace that selects the proxy.
func (w *Mesh) appliedProxyConfigs(node Node) (applied []*object.Object) {
	oldest := func(namespace string, is func(*object.Object) bool) {
		if i := slices.IndexFunc(w.proxyConfigs[namespace], is); i >= 0 {
			applied = append(applied, w.proxyConfigs[namespace][i])
		}
	}
	oldest(w.mesh.RootNamespace, isForNamespace)
	if node.Namespace != w.mesh.RootNamespace {
		oldest(node.Namespace, isForNamespace)
	}
	oldest(node.Namespace, func(o *object.Object) bool { return selectsProcess(o, node) })
	return applied
}

// ShadowedProxyConfigs returns the ProxyConfigs for a proxy that have no effect, each with the
// older ProxyConfig of the same scope that has precedence.
func (w *Mesh) ShadowedProxyConfigs(node Node) map[*object.Object]*object.Object {
	shadowed, applied := map[*object.Object]*object.Object{}, w.appliedProxyConfigs(node)
	for _, namespace := range []string{w.mesh.RootNamespace, node.Namespace} {
		for _, o := range w.proxyConfigs[namespace] {
			for _, by := range applied {
				if o != by && o.Namespace == by.Namespace && !slices.Contains(applied, o) &&
					isForNamespace(o) == isForNamespace(by) &&
					(isForNamespace(o) || selectsProcess(o, node)) {
					shadowed[o] = by
				}
			}
		}
	}
	return shadowed
}

// isForNamespace reports whether a ProxyConfig is for all proxies of its namespace. As in Istio, a
// ProxyConfig with a selector that has no labels applies to no proxy.
func isForNamespace(o *object.Object) bool {
	return o.Spec.(*networking.ProxyConfig).GetSelector() == nil
}

func selectsProcess(o *object.Object, node Node) bool {
	labels := o.Spec.(*networking.ProxyConfig).GetSelector().GetMatchLabels()
	return len(labels) > 0 && SelectorMatches(labels, node.Labels)
}
