package translate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	extauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	networkextauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	meshapi "istio.io/api/mesh/v1alpha1"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/rbac"
)

// The shadow rules of an RBAC filter, which deny nothing, determine whether a request must be sent
// to an external authorizer. The ext_authz filter after it reads the result from the RBAC filter's
// metadata.
const (
	extAuthzFilter        = "envoy.filters.http.ext_authz"
	networkExtAuthzFilter = "envoy.filters.network.ext_authz"
	authorizerPrefix      = "istio-ext-authz" // prefix of the names of rules
	authorizerShadow      = "istio_ext_authz_"
	matchedRule           = authorizerShadow + "shadow_effective_policy_id"

	// Istio's default time-out for a call of an external authorizer
	authorizerTimeout = 600 * time.Second
	authorizerFix     = "name one provider of extensionProviders in MeshConfig, whose service a " +
		"ServiceEntry has"
)

// authorizer returns the cluster and the host of an external authorizer; why explains why it cannot
// be used.
func (a *AuthorizationFilters) authorizer(w *model.Mesh, name string,
	providers int) (cluster, host, why string) {
	if providers > 1 {
		return "", "", "the policies of one workload name several providers"
	}
	provider := w.MeshConfig().ExternalAuthorizers[name]
	service, port := provider.GetEnvoyExtAuthzHttp().GetService(),
		provider.GetEnvoyExtAuthzHttp().GetPort()
	if grpc := provider.GetEnvoyExtAuthzGrpc(); grpc != nil {
		service, port = grpc.Service, grpc.Port
	}
	if provider == nil {
		return "", "", fmt.Sprintf("MeshConfig has no external authorizer %q", name)
	}
	if cluster, host, why = providerCluster(w, service, port); why != "" {
		why = "provider " + name + ": " + why
	}
	a.HostsRead = append(a.HostsRead, host)
	return cluster, host, why
}

// external adds the filters of an external authorizer. An authorizer over HTTP has no filter for
// connections.
func (a *AuthorizationFilters) external(provider *meshapi.MeshConfig_ExtensionProvider, name,
	cluster,
	host string, requests, connections *rbacv3.RBAC) error {
	rules, err := guard(rbac.RequestFilter, &httprbacv3.RBAC{ShadowRules: requests,
		ShadowRulesStatPrefix: authorizerShadow})
	if err != nil {
		return err
	}
	check := overHTTP(provider.GetEnvoyExtAuthzHttp(), cluster, host)
	grpc := provider.GetEnvoyExtAuthzGrpc()
	if grpc != nil {
		check = overGRPC(grpc, cluster, host)
	}
	check.FilterEnabledMetadata = matched(rbac.RequestFilter, name)
	filter, err := guard(extAuthzFilter, check)
	if err != nil {
		return err
	}
	a.ExtAuthzHTTP = append(a.ExtAuthzHTTP, rules, filter)
	if grpc == nil {
		return nil
	}
	for _, f := range []struct {
		name   string
		config validated
	}{
		{rbac.ConnectionFilter, &networkrbacv3.RBAC{ShadowRules: connections,
			ShadowRulesStatPrefix: authorizerShadow, StatPrefix: networkStatPrefix}},
		{networkExtAuthzFilter, &networkextauthzv3.ExtAuthz{StatPrefix: networkStatPrefix,
			FailureModeAllow: grpc.FailOpen, TransportApiVersion: corev3.ApiVersion_V3,
			GrpcService:           check.GetGrpcService(),
			FilterEnabledMetadata: matched(rbac.ConnectionFilter, name)}},
	} {
		filter, err := networkFilter(f.name, f.config)
		if err != nil {
			return err
		}
		a.ExtAuthzNetwork = append(a.ExtAuthzNetwork, filter)
	}
	return nil
}

// matched returns a matcher for the metadata that an RBAC filter sets if one of its rules for a
// provider matches.
func matched(filter, provider string) *matcherv3.MetadataMatcher {
	return &matcherv3.MetadataMatcher{Filter: filter,
		Path: []*matcherv3.MetadataMatcher_PathSegment{{
			Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: matchedRule}}},
		Value: &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{
			StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{
				Prefix: authorizerPrefix + "-" + provider}}}}}
}

func overHTTP(p *meshapi.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider,
	cluster, host string) *extauthzv3.ExtAuthz {
	service := &extauthzv3.HttpService{PathPrefix: p.GetPathPrefix(), ServerUri: &corev3.HttpUri{
		// Envoy requires a URI and ignores it
		Timeout: orDefault(p.GetTimeout()), Uri: "http://" + host,
		HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: cluster}}}
	if added := p.GetIncludeAdditionalHeadersInCheck(); len(added) > 0 {
		service.AuthorizationRequest = &extauthzv3.AuthorizationRequest{}
		for _, name := range slices.Sorted(maps.Keys(added)) {
			service.AuthorizationRequest.HeadersToAdd = append(
				service.AuthorizationRequest.HeadersToAdd,
				&corev3.HeaderValue{Key: name, Value: added[name]})
		}
	}
	upstream, denied, allowed := p.GetHeadersToUpstreamOnAllow(), p.GetHeadersToDownstreamOnDeny(),
		p.GetHeadersToDownstreamOnAllow()
	if len(upstream)+len(denied)+len(allowed) > 0 {
		service.AuthorizationResponse = &extauthzv3.AuthorizationResponse{
			AllowedUpstreamHeaders: headerNames(upstream), AllowedClientHeaders: headerNames(denied),
			AllowedClientHeadersOnSuccess: headerNames(allowed)}
	}
	included := p.GetIncludeRequestHeadersInCheck()
	if len(included) == 0 {
		included = p.GetIncludeHeadersInCheck() //nolint:staticcheck // deprecated, still valid YAML
	}
	return &extauthzv3.ExtAuthz{StatusOnError: statusOf(p.GetStatusOnError()),
		FailureModeAllow: p.GetFailOpen(), TransportApiVersion: corev3.ApiVersion_V3,
		Services:        &extauthzv3.ExtAuthz_HttpService{HttpService: service},
		ClearRouteCache: p.GetClearRouteCache(), AllowedHeaders: headerNames(included),
		WithRequestBody: bodyOf(p.GetIncludeRequestBodyInCheck())}
}

func overGRPC(p *meshapi.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationGrpcProvider,
	cluster, host string) *extauthzv3.ExtAuthz {
	return &extauthzv3.ExtAuthz{StatusOnError: statusOf(p.StatusOnError),
		FailureModeAllow: p.FailOpen, TransportApiVersion: corev3.ApiVersion_V3,
		Services: &extauthzv3.ExtAuthz_GrpcService{GrpcService: &corev3.GrpcService{
			TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: cluster, Authority: host}},
			Timeout: orDefault(p.Timeout)}},
		ClearRouteCache: p.ClearRouteCache, WithRequestBody: bodyOf(p.IncludeRequestBodyInCheck)}
}

func orDefault(timeout *durationpb.Duration) *durationpb.Duration {
	if timeout == nil {
		return durationpb.New(authorizerTimeout)
	}
	return timeout
}

// statusOf parses an HTTP status, which validation has checked. For "" it returns nil, Envoy's
// default.
func statusOf(text string) *typev3.HttpStatus {
	code, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return nil
	}
	return &typev3.HttpStatus{Code: typev3.StatusCode(code)}
}

func bodyOf(
	in *meshapi.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationRequestBody,
) *extauthzv3.BufferSettings {
	if in == nil {
		return nil
	}
	return &extauthzv3.BufferSettings{MaxRequestBytes: in.MaxRequestBytes,
		AllowPartialMessage: in.AllowPartialMessage, PackAsBytes: in.PackAsBytes}
}

// headerNames returns a matcher for names of headers, which may begin or end with a wildcard.
func headerNames(names []string) *matcherv3.ListStringMatcher {
	if len(names) == 0 {
		return nil
	}
	out := &matcherv3.ListStringMatcher{}
	for _, name := range names {
		match := exactly(name)
		if suffix, ok := strings.CutPrefix(name, "*"); ok {
			match = &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{
				Suffix: suffix}}
		} else if prefix, ok := strings.CutSuffix(name, "*"); ok {
			match = &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{
				Prefix: prefix}}
		}
		match.IgnoreCase = true
		out.Patterns = append(out.Patterns, match)
	}
	return out
}
