package meshfile

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	meshapi "istio.io/api/mesh/v1alpha1"

	"outrider.org/outrider/agent/discovery/validate"
)

// providerName matches names that Istio permits for an external authorizer. Names in metadata
// contain them.
var providerName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// providers checks extensionProviders. Only external authorizers are supported.
func (c *checker) providers(all []*meshapi.MeshConfig_ExtensionProvider) {
	names := map[string]bool{}
	for i, p := range all {
		field := fmt.Sprintf("extensionProviders[%d]", i)
		switch {
		case p.GetName() == "":
			c.fail(field+".name", "is missing", "name the provider")
		case names[p.Name]:
			c.fail(field+".name", fmt.Sprintf("%q is given twice", p.Name), "rename one")
		}
		names[p.GetName()] = true
		if !isAuthorizer(p) {
			c.warn(field, "is not supported by this version of Outrider and has no effect",
				"remove it to be rid of this warning")
			continue
		}
		if p.Name != "" && !providerName.MatchString(p.Name) {
			c.fail(field+".name", fmt.Sprintf("%q is no name of an external authorizer", p.Name),
				"write up to 63 lower-case letters, digits and -, a letter or digit first and last")
		}
		if grpc := p.GetEnvoyExtAuthzGrpc(); grpc != nil {
			c.authorizer(field+".envoyExtAuthzGrpc", grpc)
		} else {
			c.authorizer(field+".envoyExtAuthzHttp", p.GetEnvoyExtAuthzHttp())
			c.httpAuthorizer(field+".envoyExtAuthzHttp", p.GetEnvoyExtAuthzHttp())
		}
	}
}

func isAuthorizer(p *meshapi.MeshConfig_ExtensionProvider) bool {
	return p.GetEnvoyExtAuthzHttp() != nil || p.GetEnvoyExtAuthzGrpc() != nil
}

// authorizer checks the fields that authorizers over HTTP and over gRPC have in common.
func (c *checker) authorizer(field string, p interface {
	GetService() string
	GetPort() uint32
	GetTimeout() *durationpb.Duration
	GetStatusOnError() string
	GetIncludeRequestBodyInCheck() *meshapi.
		MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationRequestBody
}) {
	c.findings = append(c.findings, validate.ServiceName(field+".service", p.GetService())...)
	if p.GetPort() < 1 || p.GetPort() > 65535 {
		c.fail(field+".port", fmt.Sprintf("%d is not a valid port", p.GetPort()),
			"write a number from 1 to 65535")
	}
	c.duration(field+".timeout", p.GetTimeout(), time.Millisecond, 0)
	if status := p.GetStatusOnError(); status != "" {
		code, err := strconv.ParseInt(status, 10, 32)
		if _, known := typev3.StatusCode_name[int32(code)]; err != nil || !known || code == 0 {
			c.fail(field+".statusOnError", fmt.Sprintf("%q is no status that Envoy knows", status),
				`write one such as "503"`)
		}
	}
	if body := p.GetIncludeRequestBodyInCheck(); body != nil && body.MaxRequestBytes == 0 {
		c.fail(field+".includeRequestBodyInCheck.maxRequestBytes", "is missing",
			"write how many bytes of a request are sent")
	}
}

func (c *checker) httpAuthorizer(field string,
	p *meshapi.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider) {
	if prefix := p.PathPrefix; prefix != "" {
		if _, err := url.Parse(prefix); err != nil || !strings.HasPrefix(prefix, "/") {
			c.fail(field+".pathPrefix", fmt.Sprintf("%q is no path", prefix), "begin it with /")
		}
	}
	for name, headers := range map[string][]string{
		"includeRequestHeadersInCheck": p.IncludeRequestHeadersInCheck,
		"includeHeadersInCheck": p. //nolint:staticcheck // deprecated, still valid YAML
						IncludeHeadersInCheck,
		"headersToUpstreamOnAllow":   p.HeadersToUpstreamOnAllow,
		"headersToDownstreamOnDeny":  p.HeadersToDownstreamOnDeny,
		"headersToDownstreamOnAllow": p.HeadersToDownstreamOnAllow} {
		if slices.Contains(headers, "*") {
			c.fail(field+"."+name, "* alone is no name of a header",
				"write a prefix such as x-* or a suffix such as *-id")
		}
	}
}

// authorizers returns the external authorizers by name.
func authorizers(m *meshapi.MeshConfig) map[string]*meshapi.MeshConfig_ExtensionProvider {
	var all map[string]*meshapi.MeshConfig_ExtensionProvider
	for _, p := range m.ExtensionProviders {
		if isAuthorizer(p) {
			if all == nil {
				all = map[string]*meshapi.MeshConfig_ExtensionProvider{}
			}
			all[p.Name] = p
		}
	}
	return all
}
