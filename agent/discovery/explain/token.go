package explain

import (
	"slices"
	"strings"
	"time"

	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"

	"outrider.org/outrider/agent/jwt"
)

// checkToken verifies a token for a provider, with the checks in Envoy's order. audiences, if any,
// replace those of the provider.
func checkToken(t *jwt.Token, p *jwtv3.JwtProvider, audiences []string) jwt.Fault {
	if p.Issuer != "" && t.Issuer() != p.Issuer {
		return unknownIssuer
	}
	skew := float64(60)
	if p.ClockSkewSeconds > 0 {
		skew = float64(p.ClockSkewSeconds)
	}
	now := float64(time.Now().Unix())
	if from, ok := t.Claims["nbf"].(float64); ok && now+skew < from {
		return earlyToken
	}
	if until, ok := t.Claims["exp"].(float64); ok && until != 0 && now > until+skew {
		return expiredToken
	}
	if len(audiences) == 0 {
		audiences = p.Audiences
	}
	if len(audiences) > 0 && !slices.ContainsFunc(t.Audiences(), func(of string) bool {
		return slices.ContainsFunc(audiences, func(one string) bool {
			return audience(one) == audience(of)
		})
	}) {
		return audienceNotAllowed
	}
	set := p.GetLocalJwks().GetInlineString()
	if set == "" {
		set = string(p.GetLocalJwks().GetInlineBytes())
	}
	return t.Verify(jwt.ParseKeys(set))
}

// audience returns an audience without its scheme and trailing slash, which Envoy ignores in
// comparisons.
func audience(text string) string {
	for _, scheme := range []string{"http://", "https://"} {
		if rest, ok := strings.CutPrefix(text, scheme); ok {
			text = rest
			break
		}
	}
	return strings.TrimSuffix(text, "/")
}
