package store

import (
	"fmt"

	"github.com/envoyproxy/go-control-plane/envoy/annotations"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"outrider.org/outrider/agent/condition"
)

// warnDeprecated reports a field, value or message that is deprecated in Envoy's API.
func (d *decoder) warnDeprecated(node *yaml.Node, of protoreflect.Descriptor, at *path) {
	deprecated, refused, since := deprecation(of)
	message := fmt.Sprintf("%s is deprecated", of.Name())
	if since != "" {
		message += " since version " + since + " of Envoy's API"
	}
	switch {
	case refused:
		d.report(condition.Warning, node.Line, at, message+", and Envoy refuses it unless the "+
			"runtime key envoy.deprecated_features:"+string(of.FullName())+" is true",
			"write what Envoy's documentation has in its place")
	case deprecated:
		d.report(condition.Warning, node.Line, at, message+", and a later Envoy may refuse it",
			"write what Envoy's documentation has in its place")
	}
}

// deprecation returns whether a descriptor is deprecated, whether Envoy refuses it by default, and
// since which version of the API it is deprecated; "" if unknown.
func deprecation(of protoreflect.Descriptor) (deprecated, refused bool, since string) {
	switch options := of.Options().(type) {
	case *descriptorpb.FieldOptions:
		refused, _ = proto.GetExtension(options, annotations.E_DisallowedByDefault).(bool)
		since, _ = proto.GetExtension(options, annotations.E_DeprecatedAtMinorVersion).(string)
		deprecated = options.GetDeprecated()
	case *descriptorpb.EnumValueOptions:
		refused, _ = proto.GetExtension(options, annotations.E_DisallowedByDefaultEnum).(bool)
		since, _ = proto.GetExtension(options, annotations.E_DeprecatedAtMinorVersionEnum).(string)
		deprecated = options.GetDeprecated()
	case *descriptorpb.MessageOptions:
		deprecated = options.GetDeprecated()
	}
	return deprecated, refused, since
}
