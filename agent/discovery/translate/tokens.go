package translate

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/emptypb"
	security "istio.io/api/security/v1beta1"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/rbac"
	"outrider.org/outrider/agent/jwks"
	"outrider.org/outrider/agent/resource"
)

// spacedClaims are claims whose text contains a list separated by spaces, as in Istio.
var spacedClaims = []string{"permission", "scope"}

// JWTFilters holds the filter for the RequestAuthentications of a proxy. The filter follows
// external authorizers and precedes the other AuthorizationPolicies.
type JWTFilters struct {
	// HTTP filters; empty if no RequestAuthentication of the proxy has rules
	Filters  []*hcmv3.HttpFilter
	Origins  []resource.Origin
	Problems []object.Problem
}

// RequestAuthentications translates the RequestAuthentications of a proxy. If Envoy would refuse
// the result, every request is refused.
func RequestAuthentications(w *model.Mesh, node model.Node) JWTFilters {
	rules := w.JWTRules(node)
	if len(rules) == 0 {
		return JWTFilters{}
	}
	var out JWTFilters
	for _, rule := range rules {
		out.Origins = append(out.Origins, rule.Object.Origin())
	}
	out.Origins = compact(out.Origins)
	config := verifyTokens(rules, w.KeySet, node.Type == model.Router)
	if err := config.Validate(); err != nil {
		for _, rule := range rules {
			out.Problems = append(out.Problems, rule.Object.NewProblem(object.Finding{
				Field: rule.Field, Severity: condition.Error,
				Message: "the proxy denies all requests, as Envoy would refuse the rules: " +
					err.Error(), Fix: "correct the value it names"}))
		}
		config = refuseRequests()
	}
	out.Filters = []*hcmv3.HttpFilter{httpFilter(rbac.TokenFilter, config)}
	return out
}

// verifyTokens returns the JWT filter's configuration for rules. It accepts requests without a
// token and denies invalid tokens. If several rules read the same header, a token must satisfy one
// of them.
func verifyTokens(rules []model.JWTRule, keys func(model.JWTRule) string,
	gateway bool) *jwtv3.JwtAuthentication {
	config := &jwtv3.JwtAuthentication{BypassCorsPreflight: true,
		Providers: map[string]*jwtv3.JwtProvider{}}
	var all, one []*jwtv3.JwtRequirement
	for i, rule := range rules {
		name := ruleName(rule.Object, "", i)
		config.Providers[name] = provider(rule, keys(rule), gateway)
		this := &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_ProviderName{
			ProviderName: name}}
		missing := &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_AllowMissing{
			AllowMissing: &emptypb.Empty{}}}
		one = append(one, this)
		all = append(all, anyRequirement(this, missing))
	}
	required := all[0]
	if len(rules) > 1 {
		required = anyRequirement(append(one, &jwtv3.JwtRequirement{
			RequiresType: &jwtv3.JwtRequirement_RequiresAll{
				RequiresAll: &jwtv3.JwtRequirementAndList{Requirements: all}}})...)
	}
	config.Rules = []*jwtv3.RequirementRule{{Match: everything(),
		RequirementType: &jwtv3.RequirementRule_Requires{Requires: required}}}
	return config
}

// refuseRequests returns a configuration that denies every request.
func refuseRequests() *jwtv3.JwtAuthentication {
	const name = "none"
	return &jwtv3.JwtAuthentication{
		Providers: map[string]*jwtv3.JwtProvider{name: provider(model.JWTRule{
			JWTRule: &security.JWTRule{}}, jwks.UnusableKeySet(), false)},
		Rules: []*jwtv3.RequirementRule{{Match: everything(),
			RequirementType: &jwtv3.RequirementRule_Requires{Requires: &jwtv3.JwtRequirement{
				RequiresType: &jwtv3.JwtRequirement_ProviderName{ProviderName: name}}}}}}
}

func anyRequirement(of ...*jwtv3.JwtRequirement) *jwtv3.JwtRequirement {
	return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_RequiresAny{
		RequiresAny: &jwtv3.JwtRequirementOrList{Requirements: of}}}
}

// provider returns the configuration by which Envoy verifies the tokens of a rule. For a gateway,
// it clears the route cache afterwards, because routes may depend on claims.
func provider(rule model.JWTRule, keys string, gateway bool) *jwtv3.JwtProvider {
	spaced := append(slices.Clone(rule.SpaceDelimitedClaims), spacedClaims...)
	slices.Sort(spaced)
	out := &jwtv3.JwtProvider{Issuer: rule.Issuer, Audiences: rule.Audiences,
		Forward: rule.ForwardOriginalToken, ForwardPayloadHeader: rule.OutputPayloadToHeader,
		FromParams: rule.FromParams, FromCookies: rule.FromCookies,
		PayloadInMetadata: rbac.TokenClaims, ClearRouteCache: gateway,
		NormalizePayloadInMetadata: &jwtv3.JwtProvider_NormalizePayload{
			SpaceDelimitedClaims: slices.Compact(spaced)},
		JwksSourceSpecifier: &jwtv3.JwtProvider_LocalJwks{LocalJwks: &corev3.DataSource{
			Specifier: &corev3.DataSource_InlineString{InlineString: keys}}}}
	for _, from := range rule.FromHeaders {
		out.FromHeaders = append(out.FromHeaders, &jwtv3.JwtHeader{Name: from.Name,
			ValuePrefix: from.Prefix})
	}
	for _, to := range rule.OutputClaimToHeaders {
		out.ClaimToHeaders = append(out.ClaimToHeaders, &jwtv3.JwtClaimToHeader{
			HeaderName: to.Header, ClaimName: to.Claim})
	}
	return out
}
