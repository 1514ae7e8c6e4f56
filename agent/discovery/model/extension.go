package model

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	extensions "istio.io/api/extensions/v1alpha1"
	types "istio.io/api/type/v1beta1"

	"outrider.org/outrider/agent/credential"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/wasm"
)

// ExtensionNamePrefix begins Istio's names of the filters of extensions. Such a name ends with
// wasmPluginSuffix if the extension is a WasmPlugin; the name of an object cannot contain this
// suffix.
const (
	ExtensionNamePrefix = "extensions.istio.io/trafficextension/"
	wasmPluginSuffix    = "~istio-translated-wasmplugin"
	imageScheme         = "oci"
	latestTag           = ":latest"
	dockerConfigFile    = ".dockerconfigjson" // file of a credential, as in Kubernetes' secrets
)

// Extension is a TrafficExtension, or a WasmPlugin converted to one, as in Istio.
type Extension struct {
	*extensions.TrafficExtension
	Object *object.Object
}

// asExtension returns the extension of an object.
func asExtension(o *object.Object) Extension {
	if x, ok := o.Spec.(*extensions.TrafficExtension); ok {
		return Extension{x, o}
	}
	p := o.Spec.(*extensions.WasmPlugin)
	out := &extensions.TrafficExtension{
		// the enums of both kinds have the same numbers
		Phase:    extensions.TrafficExtension_ExecutionPhase(p.Phase),
		Priority: p.Priority,
		FilterConfig: &extensions.TrafficExtension_Wasm{Wasm: &extensions.WasmConfig{Url: p.Url,
			Sha256: p.Sha256, ImagePullPolicy: p.ImagePullPolicy, ImagePullSecret: p.ImagePullSecret,
			PluginConfig: p.PluginConfig, PluginName: p.PluginName, FailStrategy: p.FailStrategy,
			VmConfig: p.VmConfig, Type: p.Type}}}
	for _, m := range p.Match {
		out.Match = append(out.Match, &extensions.TrafficSelector{Mode: m.GetMode(),
			Ports: m.GetPorts()})
	}
	return Extension{out, o}
}

// Extensions returns the extensions that apply to a proxy, in the order of their filters within a
// phase, which is Istio's: by priority, the highest first, then those of the proxy's own namespace,
// then by age, then by name.
func (w *Mesh) Extensions(node Node) []Extension {
	var all []Extension
	for _, kind := range []object.Kind{object.WasmPlugin, object.TrafficExtension} {
		for _, o := range w.SecurityPolicies(kind, node) {
			all = append(all, asExtension(o))
		}
	}
	priority := func(e Extension) int32 {
		if e.Priority == nil {
			return math.MinInt32
		}
		return e.Priority.Value
	}
	own := func(e Extension) int {
		if e.Object.Namespace == node.Namespace {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(all, func(a, b Extension) int {
		return cmp.Or(cmp.Compare(priority(b), priority(a)), cmp.Compare(own(a), own(b)),
			a.Object.Created.Compare(b.Object.Created), cmp.Compare(a.IstioName(), b.IstioName()))
	})
	return all
}

// Suffixes that Name appends to Istio's name.
const (
	networkSuffix   = "~network"
	restrictsSuffix = "~restricts"
	failOpenSuffix  = "~fail-open"
)

// Name returns the name of the extension's filter and configuration. While a new configuration is
// being fetched or is refused, Envoy retains the previous one of the same name. So the name changes
// with the properties for which the previous configuration would be wrong: the kind of filter, the
// restriction of access and the fail strategy.
func (e Extension) Name() string {
	name := e.IstioName()
	if e.IsNetworkFilter() {
		name += networkSuffix
	}
	if e.Object.RestrictsAccess() {
		name += restrictsSuffix
	}
	if e.GetWasm().GetFailStrategy() == extensions.FailStrategy_FAIL_OPEN {
		name += failOpenSuffix
	}
	return name
}

// IstioFilterName returns Istio's name of a filter, which may be an extension.
func IstioFilterName(filter string) string {
	if strings.HasPrefix(filter, ExtensionNamePrefix) {
		for _, suffix := range [...]string{failOpenSuffix, restrictsSuffix, networkSuffix} {
			filter = strings.TrimSuffix(filter, suffix)
		}
	}
	return filter
}

// IstioName returns Istio's name of the extension's filter.
func (e Extension) IstioName() string {
	name := ExtensionNamePrefix + e.Object.Namespace + "." + e.Object.Name
	if e.Object.Kind == object.WasmPlugin {
		name += wasmPluginSuffix
	}
	return name
}

// IsNetworkFilter reports whether the extension is a network filter. Otherwise it is an HTTP
// filter.
func (e Extension) IsNetworkFilter() bool {
	return e.GetWasm().GetType() == extensions.PluginType_NETWORK
}

// FailsOpen reports whether traffic continues without the extension while its module is missing or
// Envoy refuses it. It is false for an extension that restricts access.
func (e Extension) FailsOpen() bool {
	open := e.GetLua() != nil || e.GetWasm().GetFailStrategy() == extensions.FailStrategy_FAIL_OPEN
	return open && !e.Object.RestrictsAccess()
}

// Matches reports whether the extension is for a port of a listener. mode is CLIENT for outbound
// listeners and those of gateways, SERVER for inbound ones. port 0 stands for any undeclared port.
func (e Extension) Matches(mode types.WorkloadMode, port uint32) bool {
	return len(e.Match) == 0 || slices.ContainsFunc(e.Match, func(m *extensions.TrafficSelector) bool {
		anyMode := m.GetMode() == types.WorkloadMode_UNDEFINED ||
			m.GetMode() == types.WorkloadMode_CLIENT_AND_SERVER
		return (anyMode || m.GetMode() == mode) && (len(m.GetPorts()) == 0 ||
			slices.ContainsFunc(m.GetPorts(), func(p *types.PortSelector) bool {
				return port != 0 && p.GetNumber() == port
			}))
	})
}

// URL returns the URL of the module. A text without a scheme is the name of an image, and gets
// oci://.
func (e Extension) URL() string {
	from := e.GetWasm().GetUrl()
	parsed, err := url.Parse(from)
	if err == nil && parsed.Scheme != "" || strings.Contains(from, "://") {
		return from
	}
	return imageScheme + "://" + from
}

// RefetchKey returns a hash of the object's spec if each change of the object requires that its
// module is fetched again: with imagePullPolicy Always or, as in Istio, without imagePullPolicy for
// an image with the tag latest. Otherwise it returns "".
func (e Extension) RefetchKey() string {
	switch policy := e.GetWasm().GetImagePullPolicy(); {
	case policy == extensions.PullPolicy_Always,
		policy == extensions.PullPolicy_UNSPECIFIED_POLICY && isLatest(e.URL()):
		return e.ResourceVersion()
	}
	return ""
}

// ResourceVersion returns a text that changes with the object, as Kubernetes' resource version
// does.
func (e Extension) ResourceVersion() string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(object.EncodeDeterministic(e.Object.Spec))))
}

// isLatest reports whether a URL is one of an image with the tag latest, or without a tag.
func isLatest(from string) bool {
	image, ok := strings.CutPrefix(from, imageScheme+"://")
	if !ok || strings.Contains(image, "@") {
		return false
	}
	return strings.HasSuffix(image, latestTag) ||
		!strings.Contains(image[strings.LastIndexByte(image, '/')+1:], ":")
}

// Source returns the source of the module. folder is the directory with the credentials; "": there
// are none.
func (e Extension) Source(folder string) wasm.Source {
	from := wasm.Source{URL: e.URL(), SHA256: e.GetWasm().GetSha256(),
		ConfigVersion: e.RefetchKey()}
	if name := e.GetWasm().GetImagePullSecret(); name != "" && credential.CheckName(name) == nil {
		from.SecretFile = filepath.Join(folder, name, dockerConfigFile)
	}
	return from
}

// Extension returns the object of an extension, nil if there is none.
func (w *Mesh) Extension(key object.Key) *object.Object {
	for _, policies := range w.policies {
		for _, o := range policies {
			if o.Key == key && o.Kind.IsExtension() {
				return o
			}
		}
	}
	return nil
}

// ModuleSources returns the sources of the Wasm modules that proxies of a namespace may need.
func (w *Mesh) ModuleSources(namespace string) map[wasm.Source]bool {
	all := map[wasm.Source]bool{}
	for _, policies := range w.policies {
		for _, o := range policies {
			if !o.Kind.IsExtension() || o.Namespace != namespace && o.Namespace != w.mesh.RootNamespace {
				continue
			}
			if e := asExtension(o); e.GetWasm() != nil {
				all[e.Source(w.mesh.Credentials.Folder)] = true
			}
		}
	}
	return all
}

// SetModules sets the function that returns the module of a source; see wasm.Fetcher.Module.
func (w *Mesh) SetModules(modules func(wasm.Source) ([]byte, error)) { w.modules = modules }

// Module returns the module of an extension; see wasm.Fetcher.Module.
func (w *Mesh) Module(e Extension) ([]byte, error) {
	if w.modules == nil {
		return nil, nil
	}
	return w.modules(e.Source(w.mesh.Credentials.Folder))
}

// ClientsFetchModules reports whether clients fetch the modules themselves.
func (w *Mesh) ClientsFetchModules() bool { return w.modules == nil }
