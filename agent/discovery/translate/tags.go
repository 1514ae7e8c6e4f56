package translate

import (
	"cmp"
	"slices"

	metadatav3 "github.com/envoyproxy/go-control-plane/envoy/type/metadata/v3"
	tracingv3 "github.com/envoyproxy/go-control-plane/envoy/type/tracing/v3"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/rbac"
)

// customTag is the common interface of the tags of a Telemetry and of MeshConfig.
type customTag[L interface{ GetValue() string }, H, E interface {
	GetName() string
	GetDefaultValue() string
}] interface {
	GetLiteral() L
	GetHeader() H
	GetEnvironment() E
}

// tags returns the tags of spans, sorted by name: those of Istio, and those of a Telemetry or else
// those of MeshConfig.
func (o *observer) tags(spec *model.Tracing) []*tracingv3.CustomTag {
	var all []*tracingv3.CustomTag
	if spec.IstioTags {
		all = o.istioTags()
	}
	for name, tag := range spec.Tags {
		all = append(all, tagOf(name, tag, tag.GetFormatter().GetValue()))
	}
	if len(spec.Tags) == 0 {
		for name, tag := range o.world.MeshConfig().Tracing.GetCustomTags() {
			all = append(all, tagOf(name, tag, ""))
		}
	}
	all = slices.DeleteFunc(all, func(t *tracingv3.CustomTag) bool { return t.Type == nil })
	slices.SortStableFunc(all, func(a, b *tracingv3.CustomTag) int { return cmp.Compare(a.Tag, b.Tag) })
	return all
}

// tagOf translates a tag. The result has a nil type if the tag has no value.
func tagOf[L interface{ GetValue() string }, H, E interface {
	GetName() string
	GetDefaultValue() string
}](name string, in customTag[L, H, E], format string) *tracingv3.CustomTag {
	out := &tracingv3.CustomTag{Tag: name}
	switch {
	case format != "":
		out.Type = &tracingv3.CustomTag_Value{Value: format}
	case in.GetLiteral().GetValue() != "":
		out.Type = literalTag(in.GetLiteral().GetValue())
	case in.GetHeader().GetName() != "":
		out.Type = &tracingv3.CustomTag_RequestHeader{RequestHeader: &tracingv3.CustomTag_Header{
			Name: in.GetHeader().GetName(), DefaultValue: in.GetHeader().GetDefaultValue()}}
	case in.GetEnvironment().GetName() != "":
		out.Type = &tracingv3.CustomTag_Environment_{Environment: &tracingv3.CustomTag_Environment{
			Name:         in.GetEnvironment().GetName(),
			DefaultValue: in.GetEnvironment().GetDefaultValue()}}
	}
	return out
}

func literalTag(value string) *tracingv3.CustomTag_Literal_ {
	return &tracingv3.CustomTag_Literal_{Literal: &tracingv3.CustomTag_Literal{Value: value}}
}

// istioTags returns Istio's tags: those that identify the proxy, and the results of dry-run
// policies.
func (o *observer) istioTags() []*tracingv3.CustomTag {
	tag := func(name, value, otherwise string) *tracingv3.CustomTag {
		return &tracingv3.CustomTag{Tag: name, Type: literalTag(orElse(value, otherwise))}
	}
	return []*tracingv3.CustomTag{
		tag("istio.canonical_revision", o.node.Labels["service.istio.io/canonical-revision"], "latest"),
		tag("istio.canonical_service", o.node.Labels["service.istio.io/canonical-name"], "unknown"),
		tag("istio.mesh_id", o.node.Metadata["MESH_ID"], "unknown"),
		tag("istio.namespace", o.node.Metadata["NAMESPACE"], "default"),
		tag("istio.cluster_id", o.node.Metadata["CLUSTER_ID"], "unknown"),
		dryRunTag("allow_policy.name", "istio_dry_run_allow_shadow_effective_policy_id"),
		dryRunTag("allow_policy.result", "istio_dry_run_allow_shadow_engine_result"),
		dryRunTag("deny_policy.name", "istio_dry_run_deny_shadow_effective_policy_id"),
		dryRunTag("deny_policy.result", "istio_dry_run_deny_shadow_engine_result"),
	}
}

// dryRunTag returns a tag whose value an RBAC filter writes to the metadata of requests.
func dryRunTag(name, key string) *tracingv3.CustomTag {
	return &tracingv3.CustomTag{Tag: "istio.authorization.dry_run." + name,
		Type: &tracingv3.CustomTag_Metadata_{Metadata: &tracingv3.CustomTag_Metadata{
			Kind: &metadatav3.MetadataKind{Kind: &metadatav3.MetadataKind_Request_{
				Request: &metadatav3.MetadataKind_Request{}}},
			MetadataKey: &metadatav3.MetadataKey{Key: rbac.RequestFilter,
				Path: []*metadatav3.MetadataKey_PathSegment{{
					Segment: &metadatav3.MetadataKey_PathSegment_Key{Key: key}}}}}}}
}
