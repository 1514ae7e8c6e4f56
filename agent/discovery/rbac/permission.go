package rbac

import (
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	uritemplatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/path/match/uri_template/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/agent/resource"
)

var permissions = logic[*rbacv3.Permission]{
	any: &rbacv3.Permission{Rule: &rbacv3.Permission_Any{Any: true}},
	and: func(all ...*rbacv3.Permission) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{
			AndRules: &rbacv3.Permission_Set{Rules: all}}}
	},
	or: func(all ...*rbacv3.Permission) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_OrRules{
			OrRules: &rbacv3.Permission_Set{Rules: all}}}
	},
	not: func(p *rbacv3.Permission) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_NotRule{NotRule: p}}
	},
}

// permission returns a permission that matches any of the values of an attribute of the
// destination.
func (t Translator) permission(attribute string, values []string) *rbacv3.Permission {
	if strings.HasPrefix(attribute, filterMetadata) {
		return metadataPermission(attribute, values)
	}
	return each(values, permissions, func(value string) *rbacv3.Permission {
		p := &rbacv3.Permission{}
		switch attribute {
		case requestHost:
			p.Rule = &rbacv3.Permission_Header{Header: header(":authority", value, true)}
		case requestMethod:
			p.Rule = &rbacv3.Permission_Header{Header: header(":method", value, false)}
		case requestPath:
			return path(value)
		case destinationPort:
			port, _ := strconv.ParseUint(value, 10, 16) // the value is a valid port
			p.Rule = &rbacv3.Permission_DestinationPort{DestinationPort: uint32(port)}
		case destinationIP:
			p.Rule = &rbacv3.Permission_DestinationIp{DestinationIp: block(value)}
		case connectionSNI:
			p.Rule = &rbacv3.Permission_RequestedServerName{RequestedServerName: text(value)}
		}
		return p
	})
}

// templates replaces the wildcards of Istio's path templates by those of Envoy.
var templates = strings.NewReplacer(oneSegment, "*", anySegments, "**")

const (
	oneSegment  = "{*}"
	anySegments = "{**}"
)

// IsPathTemplate reports whether a path contains wildcards of path templates.
func IsPathTemplate(path string) bool {
	return strings.Contains(path, oneSegment) || strings.Contains(path, anySegments)
}

func path(value string) *rbacv3.Permission {
	if !IsPathTemplate(value) {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_UrlPath{UrlPath: &matcherv3.PathMatcher{
			Rule: &matcherv3.PathMatcher_Path{Path: text(value)}}}}
	}
	template := &uritemplatev3.UriTemplateMatchConfig{PathTemplate: templates.Replace(value)}
	encoded, err := resource.Encode(template)
	if err != nil {
		panic(err.Error()) // encoding fails only for invalid UTF-8, which YAML cannot contain
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_UriTemplate{
		UriTemplate: &corev3.TypedExtensionConfig{Name: "uri-template", TypedConfig: &anypb.Any{
			TypeUrl: resource.TypePrefix + string(template.ProtoReflect().Descriptor().FullName()),
			Value:   encoded}}}}
}

// metadataPermission returns a permission that matches metadata of a filter, named
// experimental.envoy.filters.FILTER[KEY]. A value in brackets must be an element of a list.
func metadataPermission(attribute string, values []string) *rbacv3.Permission {
	filter, key, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(attribute,
		"experimental."), "]"), "[")
	alternatives := make([]*matcherv3.ValueMatcher, len(values))
	for i, value := range values {
		alternatives[i] = textValue(value)
		if strings.HasPrefix(value, "[") && strings.HasSuffix(value, "]") {
			alternatives[i] = inList(textValue(strings.Trim(value, "[]")))
		}
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_SourcedMetadata{
		SourcedMetadata: metadata(filter, []string{key}, oneOf(alternatives))}}
}
