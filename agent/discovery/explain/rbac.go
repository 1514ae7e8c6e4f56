package explain

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	templatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/path/match/uri_template/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// Facts on which the result may depend although a request need not state them.
const (
	missingSource      = "the client's address (--from IP)"
	missingDestination = "the address that the client connects to (--to)"
	missingExtension   = "a part of the policy that only Envoy evaluates"
)

// lacks records that the result depends on a fact that the request does not state. It returns
// maybe.
func (e *explanation) lacks(fact string) truth {
	if e.missing == nil {
		e.missing = map[string]bool{}
	}
	e.missing[fact] = true
	return maybe
}

// permits reports whether a permission matches the request.
func (e *explanation) permits(p *rbacconfigv3.Permission) truth {
	switch rule := p.Rule.(type) {
	case *rbacconfigv3.Permission_AndRules:
		return every(rule.AndRules.Rules, e.permits)
	case *rbacconfigv3.Permission_OrRules:
		return some(rule.OrRules.Rules, e.permits)
	case *rbacconfigv3.Permission_NotRule:
		return e.permits(rule.NotRule).not()
	case *rbacconfigv3.Permission_Any:
		return truthOf(rule.Any)
	case *rbacconfigv3.Permission_Header:
		return e.hasHeader(rule.Header)
	case *rbacconfigv3.Permission_UrlPath:
		return e.hasPath(rule.UrlPath)
	case *rbacconfigv3.Permission_UriTemplate:
		template, ok := unpack(rule.UriTemplate.GetTypedConfig(),
			&templatev3.UriTemplateMatchConfig{})
		if !ok {
			return e.lacks(missingExtension)
		}
		return truthOf(e.hcm != nil && matchTemplate(template.PathTemplate, e.path()))
	case *rbacconfigv3.Permission_DestinationIp:
		return e.inBlock(rule.DestinationIp, e.destination, missingDestination)
	case *rbacconfigv3.Permission_DestinationPort:
		return truthOf(e.request.Port == rule.DestinationPort)
	case *rbacconfigv3.Permission_DestinationPortRange:
		port := int32(e.request.Port)
		return truthOf(port >= rule.DestinationPortRange.Start &&
			port < rule.DestinationPortRange.End)
	case *rbacconfigv3.Permission_RequestedServerName:
		return e.matchesText(rule.RequestedServerName, e.serverName())
	case *rbacconfigv3.Permission_Metadata:
		return e.hasMetadata(rule.Metadata) //nolint:staticcheck // istiod writes this field
	case *rbacconfigv3.Permission_SourcedMetadata:
		if rule.SourcedMetadata.MetadataSource == rbacconfigv3.MetadataSource_DYNAMIC {
			return e.hasMetadata(rule.SourcedMetadata.MetadataMatcher)
		}
	}
	return e.lacks(missingExtension)
}

// identifies reports whether a principal matches the client.
func (e *explanation) identifies(p *rbacconfigv3.Principal) truth {
	switch id := p.Identifier.(type) {
	case *rbacconfigv3.Principal_AndIds:
		return every(id.AndIds.Ids, e.identifies)
	case *rbacconfigv3.Principal_OrIds:
		return some(id.OrIds.Ids, e.identifies)
	case *rbacconfigv3.Principal_NotId:
		return e.identifies(id.NotId).not()
	case *rbacconfigv3.Principal_Any:
		return truthOf(id.Any)
	case *rbacconfigv3.Principal_Authenticated_:
		if !e.terminated {
			return never
		}
		if id.Authenticated.PrincipalName == nil {
			return always
		}
		return e.matchesText(id.Authenticated.PrincipalName, e.request.ClientSPIFFEID)
	case *rbacconfigv3.Principal_DirectRemoteIp:
		return e.inBlock(id.DirectRemoteIp, e.request.Source, missingSource)
	case *rbacconfigv3.Principal_RemoteIp:
		return e.inBlock(id.RemoteIp, e.remote(), missingSource)
	case *rbacconfigv3.Principal_Header:
		return e.hasHeader(id.Header)
	case *rbacconfigv3.Principal_UrlPath:
		return e.hasPath(id.UrlPath)
	case *rbacconfigv3.Principal_Metadata:
		return e.hasMetadata(id.Metadata) //nolint:staticcheck // istiod writes this field
	case *rbacconfigv3.Principal_SourcedMetadata:
		if id.SourcedMetadata.MetadataSource == rbacconfigv3.MetadataSource_DYNAMIC {
			return e.hasMetadata(id.SourcedMetadata.MetadataMatcher)
		}
	}
	return e.lacks(missingExtension)
}

func (e *explanation) hasHeader(m *routev3.HeaderMatcher) truth {
	if e.hcm == nil {
		return truthOf(m.GetInvertMatch() && m.GetHeaderMatchSpecifier() == nil)
	}
	v := verdict{holds: true}
	switch holds := e.matchHeader(m, &v); {
	case len(v.open) > 0:
		return e.lacks(missingExtension)
	default:
		return truthOf(holds)
	}
}

func (e *explanation) hasPath(m *matcherv3.PathMatcher) truth {
	if e.hcm == nil {
		return never // a connection that is not parsed as HTTP has no path
	}
	return e.matchesText(m.GetPath(), e.path())
}

// path returns the path of the request without query and fragment.
func (e *explanation) path() string {
	if at := strings.IndexAny(e.request.Path, "?#"); at >= 0 {
		return e.request.Path[:at]
	}
	return e.request.Path
}

func (e *explanation) matchesText(m *matcherv3.StringMatcher, text string) truth {
	holds, known := matchString(m, text)
	if !known {
		return e.lacks(missingExtension)
	}
	return truthOf(holds)
}

// inBlock reports whether an address is in a CIDR block. If the address is not known, it records
// the missing fact.
func (e *explanation) inBlock(block *corev3.CidrRange, address netip.Addr, missing string) truth {
	from, err := netip.ParseAddr(block.AddressPrefix)
	if err != nil {
		return never
	}
	prefix := netip.PrefixFrom(from, int(block.PrefixLen.GetValue()))
	if !address.IsValid() {
		return e.lacks(missing)
	}
	return truthOf(prefix.Contains(address))
}

// remote returns the client's address according to x-forwarded-for; zero if unknown.
func (e *explanation) remote() netip.Addr {
	m := e.hcm
	if m == nil {
		return e.request.Source
	}
	skip := int(m.XffNumTrustedHops)
	if m.GetUseRemoteAddress().GetValue() {
		if skip == 0 {
			return e.request.Source
		}
		skip--
	}
	text, _ := e.header("x-forwarded-for")
	hops := strings.Split(text, ",")
	if skip >= len(hops) {
		return e.request.Source
	}
	address, err := netip.ParseAddr(strings.TrimSpace(hops[len(hops)-1-skip]))
	if err != nil {
		return e.request.Source
	}
	return address
}

// serverName returns the server name (SNI) of the connection; "" without TLS.
func (e *explanation) serverName() string {
	if !e.request.TLS {
		return ""
	}
	if e.request.ServerName != "" {
		return strings.ToLower(e.request.ServerName)
	}
	// clients in the mesh are sidecars, which send server names of Istio's form
	if e.request.ClientSPIFFEID != "" && !e.proxy.IsGateway {
		return fmt.Sprintf("outbound_.%d_._.%s", e.request.Port, strings.ToLower(e.request.Host))
	}
	if _, err := netip.ParseAddr(e.request.Host); err == nil {
		return ""
	}
	return strings.ToLower(e.request.Host)
}

// matchTemplate reports whether a URI template of Envoy matches a path: * is one segment, ** any
// number of segments.
func matchTemplate(template, path string) bool {
	const literal = `a-zA-Z0-9\-._~%!$&'()+,;:@`
	expression := strings.NewReplacer(`\*\*`, "["+literal+"/]*", `\*`, "["+literal+"]+").
		Replace(regexp.QuoteMeta(template))
	return fullMatch(expression, path)
}
