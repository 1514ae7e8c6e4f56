package translate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	networkwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	extensions "istio.io/api/extensions/v1alpha1"
	types "istio.io/api/type/v1beta1"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/resource"
)

// Extensions are a proxy's extensions, in the order of model.Mesh.Extensions. Filters of listeners
// refer to configurations that are resources of their own (ECDS), so that a fetched module changes
// no listener.
type Extensions []model.Extension

// Environment variables in a module's configuration that tell Istio's agents how to fetch it. The
// agents remove them.
const (
	variablePrefix  = "ISTIO_META_WASM_"
	policyVariable  = variablePrefix + "IMAGE_PULL_POLICY"
	versionVariable = variablePrefix + "PLUGIN_RESOURCE_VERSION"

	noSum       = "nil" // SHA-256 of a module that is not verified, for Istio's agents
	wasmRuntime = "envoy.wasm.runtime.v8"
	// time-out of agents that fetch a module
	moduleTime = 30 * time.Second
)

// requests returns the HTTP filters of a phase for a port.
func (e Extensions) requests(phase extensions.TrafficExtension_ExecutionPhase,
	mode types.WorkloadMode, port uint32) (filters []*hcmv3.HttpFilter) {
	for _, x := range e {
		if x.Phase == phase && !x.IsNetworkFilter() && x.Matches(mode, port) {
			filters = append(filters, &hcmv3.HttpFilter{Name: x.Name(),
				ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: extensionSource(x)}})
		}
	}
	return filters
}

// connections returns the network filters of a phase for a port.
func (e Extensions) connections(phase extensions.TrafficExtension_ExecutionPhase,
	mode types.WorkloadMode, port uint32) (filters []*listenerv3.Filter) {
	for _, x := range e {
		if x.Phase == phase && x.IsNetworkFilter() && x.Matches(mode, port) {
			filters = append(filters, &listenerv3.Filter{Name: x.Name(),
				ConfigType: &listenerv3.Filter_ConfigDiscovery{ConfigDiscovery: extensionSource(x)}})
		}
	}
	return filters
}

// extensionSource returns the reference to an extension's configuration. While no configuration has
// arrived, or if Envoy refuses it, the default configuration denies everything, unless the
// extension fails open. An HTTP filter may be Wasm or Lua, because the type may change before the
// listener does.
func extensionSource(e model.Extension) *corev3.ExtensionConfigSource {
	types := []string{typeOf(&httpwasmv3.Wasm{}), typeOf(&luav3.Lua{}), typeOf(absent(e))}
	if e.IsNetworkFilter() {
		types = []string{typeOf(&networkwasmv3.Wasm{}), typeOf(absent(e))}
	}
	return &corev3.ExtensionConfigSource{ConfigSource: adsSource(0),
		DefaultConfig: typed(absent(e)), TypeUrls: types}
}

// script returns the filter of an extension with Lua code.
func script(e model.Extension) proto.Message {
	return &luav3.Lua{DefaultSourceCode: &corev3.DataSource{
		Specifier: &corev3.DataSource_InlineString{InlineString: e.GetLua().GetInlineCode()}}}
}

// LuaExtension returns the resource of an extension with Lua code. Unlike istiod, which puts the
// code into the listener, an error in the code affects only this resource.
func LuaExtension(e model.Extension) (*resource.Resource, error) {
	return extensionResource(e, script(e))
}

func typeOf(m proto.Message) string {
	return resource.TypePrefix + string(m.ProtoReflect().Descriptor().FullName())
}

// absent returns the filter that replaces an extension while its module is missing.
func absent(e model.Extension) proto.Message {
	rules := &rbacv3.RBAC{Action: rbacv3.RBAC_ALLOW}
	if e.FailsOpen() {
		rules = nil
	}
	if e.IsNetworkFilter() {
		return &networkrbacv3.RBAC{Rules: rules, StatPrefix: networkStatPrefix}
	}
	return &httprbacv3.RBAC{Rules: rules}
}

// withModule returns the filter of an extension with the code of its module.
func withModule(e model.Extension, code *corev3.AsyncDataSource) proto.Message {
	in := e.GetWasm()
	config := &wasmv3.PluginConfig{Name: e.Object.Namespace + "." + e.Object.Name,
		RootId: in.PluginName,
		Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: &wasmv3.VmConfig{Runtime: wasmRuntime,
			Code:                 code,
			EnvironmentVariables: &wasmv3.EnvironmentVariables{KeyValues: map[string]string{}}}}}
	if len(in.PluginConfig.GetFields()) > 0 {
		text, err := protojson.Marshal(in.PluginConfig)
		// no error is possible: it would be about a number that is not finite, which validation
		// refuses
		if err == nil {
			config.Configuration = typed(wrapperspb.String(string(text)))
		}
	}
	variables := config.GetVmConfig().EnvironmentVariables
	for _, v := range in.VmConfig.GetEnv() {
		if v.ValueFrom == extensions.EnvValueSource_HOST {
			variables.HostEnvKeys = append(variables.HostEnvKeys, v.Name)
		} else {
			variables.KeyValues[v.Name] = v.Value
		}
	}
	switch in.FailStrategy {
	case extensions.FailStrategy_FAIL_OPEN:
		config.FailurePolicy = wasmv3.FailurePolicy_FAIL_OPEN
	case extensions.FailStrategy_FAIL_CLOSE:
		config.FailurePolicy = wasmv3.FailurePolicy_FAIL_CLOSED
	case extensions.FailStrategy_FAIL_RELOAD:
		config.FailurePolicy = wasmv3.FailurePolicy_FAIL_RELOAD
	}
	if e.IsNetworkFilter() {
		return &networkwasmv3.Wasm{Config: config}
	}
	return &httpwasmv3.Wasm{Config: config}
}

// InlineExtension returns the resource of an extension that contains its module.
func InlineExtension(e model.Extension, code []byte) (*resource.Resource, error) {
	return extensionResource(e, withModule(e, &corev3.AsyncDataSource{
		Specifier: &corev3.AsyncDataSource_Local{Local: &corev3.DataSource{
			Specifier: &corev3.DataSource_InlineBytes{InlineBytes: code}}}}))
}

// ExtensionWithoutModule returns the resource of an extension while its module is missing.
func ExtensionWithoutModule(e model.Extension) (*resource.Resource, error) {
	return extensionResource(e, absent(e))
}

func extensionResource(e model.Extension, filter proto.Message) (*resource.Resource, error) {
	if config, ok := filter.(validated); ok {
		if err := config.Validate(); err != nil {
			return nil, fmt.Errorf("filter %s: %w", e.Name(), err)
		}
	}
	out := &corev3.TypedExtensionConfig{Name: e.Name(), TypedConfig: typed(filter)}
	return resource.New(out.Name, out, e.Object.Origin())
}

// RemoteExtension returns the resource of an extension whose module the client's agent fetches, as
// istiod sends it, but without credentials of registries.
func RemoteExtension(e model.Extension) (*resource.Resource, error) {
	from := e.Source("")
	code := &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{
		Remote: &corev3.RemoteDataSource{Sha256: cmp.Or(from.SHA256, noSum),
			HttpUri: &corev3.HttpUri{Uri: from.URL,
				Timeout:          durationpb.New(moduleTime),
				HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: "_"}}}}}
	if path, ok := from.Path(); ok {
		code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{
			Local: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}}}
	}
	filter := withModule(e, code)
	variables := vmOf(filter).GetEnvironmentVariables().GetKeyValues()
	variables[versionVariable] = e.ResourceVersion()
	if policy := e.GetWasm().ImagePullPolicy; policy != extensions.PullPolicy_UNSPECIFIED_POLICY {
		variables[policyVariable] = policy.String()
	}
	return extensionResource(e, filter)
}

func vmOf(filter proto.Message) *wasmv3.VmConfig {
	if f, ok := filter.(*networkwasmv3.Wasm); ok {
		return f.GetConfig().GetVmConfig()
	}
	return filter.(*httpwasmv3.Wasm).GetConfig().GetVmConfig()
}

// origins returns the origins of the extensions.
func (e Extensions) origins() []resource.Origin {
	var all []resource.Origin
	for _, x := range e {
		all = append(all, x.Object.Origin())
	}
	return all
}

// Equal reports whether two lists have the same filters in listeners.
func (e Extensions) Equal(other Extensions) bool {
	return slices.EqualFunc(e, other, func(a, b model.Extension) bool {
		return a.Object == b.Object
	})
}
