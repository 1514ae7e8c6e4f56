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
)

// providerName matches names that Istio permits for an external authorizer. The names of RBAC
// rules, which Envoy stores in metadata, contain them.
var providerName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

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
	c.server(field, p)
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
