package patch

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	xdstypev3 "github.com/cncf/xds/go/xds/type/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
)

// newValue returns an empty message for a patch's value, nil if the kind has none.
func newValue(to applyTo) proto.Message {
	switch to {
	case networking.EnvoyFilter_LISTENER:
		return &listenerv3.Listener{}
	case networking.EnvoyFilter_FILTER_CHAIN:
		return &listenerv3.FilterChain{}
	case networking.EnvoyFilter_LISTENER_FILTER:
		return &listenerv3.ListenerFilter{}
	case networking.EnvoyFilter_NETWORK_FILTER:
		return &listenerv3.Filter{}
	case networking.EnvoyFilter_HTTP_FILTER:
		return &hcmv3.HttpFilter{}
	case networking.EnvoyFilter_ROUTE_CONFIGURATION:
		return &routev3.RouteConfiguration{}
	case networking.EnvoyFilter_VIRTUAL_HOST:
		return &routev3.VirtualHost{}
	case networking.EnvoyFilter_HTTP_ROUTE:
		return &routev3.Route{}
	case networking.EnvoyFilter_CLUSTER:
		return &clusterv3.Cluster{}
	case networking.EnvoyFilter_EXTENSION_CONFIG:
		return &corev3.TypedExtensionConfig{}
	}
	return nil
}

// build decodes a patch's value. The findings list its errors by path; after an error the message
// is nil.
func build(to applyTo, value *structpb.Struct, path string) (proto.Message, []object.Finding) {
	fail := func(message, cure string) (proto.Message, []object.Finding) {
		return nil, []object.Finding{{Field: path, Severity: condition.Error, Message: message,
			Cure: cure}}
	}
	message := newValue(to)
	if message == nil {
		return fail(fmt.Sprintf("Envoy has no %s", to), "")
	}
	plain, err := portable(value.AsMap())
	if err != nil {
		return fail(err.Error(), "write it as Envoy's documentation of version 3 has it")
	}
	findings := store.Envoy(plain, message, path)
	if slices.ContainsFunc(findings, func(f object.Finding) bool {
		return f.Severity == condition.Error
	}) {
		return nil, findings
	}
	return message, findings
}

const (
	typePrefix  = "type.googleapis.com/"
	typedStruct = "xds.type.v3.TypedStruct"
	oldStruct   = "udpa.type.v1.TypedStruct"
)

// oldType matches types of Envoy's API before version 3.
var oldType = regexp.MustCompile(`^envoy\.(api\.v2\.|.*\.v[12](alpha\d*|beta\d*)?\.[^.]+$)`)

// portable converts each typed_config of an unlinked type into a TypedStruct, and each TypedStruct
// of a linked type into that type, so that it can be merged.
func portable(value any) (any, error) {
	switch v := value.(type) {
	case []any:
		out := make([]any, len(v))
		for i, element := range v {
			var err error
			if out[i], err = portable(element); err != nil {
				return nil, err
			}
		}
		return out, nil
	case map[string]any:
		if typeURL, ok := v["@type"]; ok {
			return portableAny(typeURL, v)
		}
		return portableFields(v)
	}
	return value, nil
}

func portableFields(fields map[string]any) (map[string]any, error) {
	out := make(map[string]any, len(fields))
	for key, value := range fields {
		var err error
		if out[key], err = portable(value); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func portableAny(typeURL any, fields map[string]any) (any, error) {
	url, _ := typeURL.(string)
	name := typeName(url)
	if name == "" {
		return nil, fmt.Errorf("@type %v is no type: write type.googleapis.com/ and the name of "+
			"a message", typeURL)
	}
	rest := make(map[string]any, len(fields))
	for key, value := range fields {
		if key != "@type" {
			rest[key] = value
		}
	}
	if name == typedStruct || name == oldStruct {
		inner, _ := first(rest, "type_url", "typeUrl").(string)
		content, _ := rest["value"].(map[string]any)
		if url, name, rest = inner, typeName(inner), content; name == "" {
			return nil, fmt.Errorf("a TypedStruct without type_url: write the type that its " +
				"value is of")
		}
	}
	if oldType.MatchString(name) {
		return nil, fmt.Errorf("@type %s is of a version of Envoy's API that is gone: write its "+
			"type of version 3", url)
	}
	if !linked(name) {
		if rest == nil {
			rest = map[string]any{}
		}
		return map[string]any{"@type": typePrefix + typedStruct, "type_url": typePrefix + name,
			"value": rest}, nil
	}
	out, err := portableFields(rest)
	if err != nil {
		return nil, err
	}
	out["@type"] = typePrefix + name
	return out, nil
}

func first(fields map[string]any, names ...string) any {
	for _, name := range names {
		if value, ok := fields[name]; ok {
			return value
		}
	}
	return nil
}

// typeName returns the message name in a type URL, or "".
func typeName(url string) string {
	at := strings.LastIndexByte(url, '/')
	name := url[at+1:]
	if at < 0 || !protoreflect.FullName(name).IsValid() || !strings.Contains(name, ".") {
		return ""
	}
	return name
}

// linked reports whether a message type is linked into the program.
func linked(name string) bool {
	_, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(name))
	return err == nil
}

var _ proto.Message = (*xdstypev3.TypedStruct)(nil) // linked for protojson
