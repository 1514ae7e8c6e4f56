package explain

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/rbac"
	"outrider.org/outrider/agent/jwt"
	"outrider.org/outrider/agent/resource"
)

// Faults that Envoy's JWT filter detects in addition to those of package jwt.
const (
	missingToken        jwt.Fault = "Jwt is missing"
	unknownIssuer       jwt.Fault = "Jwt issuer is not configured"
	expiredToken        jwt.Fault = "Jwt is expired"
	earlyToken          jwt.Fault = "Jwt not yet valid"
	audienceNotAllowed  jwt.Fault = "Audiences in Jwt are not allowed"
	requirementExternal jwt.Fault = "?"
)

// adviceFor maps each fault to its fix.
var adviceFor = map[jwt.Fault]string{
	expiredToken:           "get a new token",
	earlyToken:             "use the token later, or correct the clock of its issuer",
	audienceNotAllowed:     "request a token for one of the audiences of the jwtRule",
	unknownIssuer:          "add a jwtRule for the token's issuer (iss)",
	jwt.FaultNoKeys:        "look at outrider status: the keys of the issuer cannot be had",
	jwt.FaultNoMatchingKey: "look whether the issuer's key set has the token's kid and alg",
	jwt.FaultVerification:  "look whether the token is from the issuer: another key signed it",
}

// authenticate evaluates the configuration of a JWT filter, and reports whether the filter ends the
// request.
func (e *explanation) authenticate(config *jwtv3.JwtAuthentication, d *listener) (ended bool) {
	_, origin := e.header("origin")
	_, preflight := e.header("access-control-request-method")
	if config.BypassCorsPreflight && e.request.Method == http.MethodOptions && origin && preflight {
		return false
	}
	all := objectsOf(d, string(object.RequestAuthentication))
	for _, rule := range config.Rules {
		if matches := e.match(rule.GetMatch()); !matches.holds {
			continue
		}
		a := &authentication{explanation: e, providers: config.Providers}
		fault, by := a.require(rule.GetRequires())
		origins := ofProviders(all, by)
		switch {
		case fault == requirementExternal:
			e.unknown("what requirement of filter state the token has to meet")
			return false
		case fault != jwt.NoFault:
			status := http.StatusUnauthorized
			if fault == audienceNotAllowed {
				status = http.StatusForbidden
			}
			reason := "the token is refused: " + string(fault)
			for i, o := range origins {
				reason += []string{"; by ", " or "}[min(i, 1)] + o.String()
			}
			e.step("token", "", origins, "is refused: "+string(fault))
			e.end(OutcomeLocalReply, status, reason, adviceFor[fault])
			e.answer.Body = string(fault)
			return true
		}
		e.publish(rbac.TokenFilter, a.payload)
		if a.issuer == "" {
			e.step("token", "", all, "no token, which is no reason to refuse the request")
			return false
		}
		e.step("token", "", origins, "is valid, of issuer "+a.issuer)
		return false
	}
	return false
}

func objectsOf(d *listener, kind string) (found []resource.Origin) {
	for _, o := range d.resource.Origins {
		if o.Kind == kind {
			found = append(found, o)
		}
	}
	return found
}

// ofProviders returns the RequestAuthentications that have one of the providers, or all of them if
// none has.
func ofProviders(all []resource.Origin, providers []string) (found []resource.Origin) {
	for _, provider := range providers {
		namespace, name, _, _ := splitPolicy(provider)
		for _, o := range all {
			if o.Namespace == namespace && o.Name == name && !slices.Contains(found, o) {
				found = append(found, o)
			}
		}
	}
	if len(found) == 0 {
		return all
	}
	return found
}

// authentication holds the state of evaluating a JWT filter's requirements.
type authentication struct {
	*explanation
	providers map[string]*jwtv3.JwtProvider
	payload   map[string]any // metadata that the filter sets from valid tokens
	issuer    string         // issuer of a valid token
}

// require evaluates a requirement as Envoy does: RequiresAll stops at the first failure;
// RequiresAny reports an invalid token rather than a missing one. It returns the names of the
// providers that determined the result as by.
func (a *authentication) require(r *jwtv3.JwtRequirement) (fault jwt.Fault, by []string) {
	switch of := r.GetRequiresType().(type) {
	case nil:
		return jwt.NoFault, nil
	case *jwtv3.JwtRequirement_ProviderName:
		return a.verify(of.ProviderName, nil), []string{of.ProviderName}
	case *jwtv3.JwtRequirement_ProviderAndAudiences:
		name := of.ProviderAndAudiences.ProviderName
		return a.verify(name, of.ProviderAndAudiences.Audiences), []string{name}
	case *jwtv3.JwtRequirement_RequiresAll:
		for _, one := range of.RequiresAll.Requirements {
			fault, these := a.require(one)
			if fault != jwt.NoFault {
				return fault, these
			}
			by = append(by, these...)
		}
		return jwt.NoFault, by
	case *jwtv3.JwtRequirement_RequiresAny:
		return a.requireAny(of.RequiresAny.Requirements)
	}
	return requirementExternal, nil // neither Outrider nor istiod writes an external requirement
}

func (a *authentication) requireAny(of []*jwtv3.JwtRequirement) (final jwt.Fault, by []string) {
	final, allowMissing := missingToken, false
	for _, one := range of {
		if _, ok := one.GetRequiresType().(*jwtv3.JwtRequirement_AllowMissing); ok {
			allowMissing = true
			continue
		}
		fault, these := a.require(one)
		switch {
		case fault == jwt.NoFault:
			return jwt.NoFault, these
		case fault == final:
			by = append(by, these...)
		case fault != missingToken && fault != unknownIssuer || final == missingToken:
			final, by = fault, these
		}
	}
	if allowMissing && final == missingToken {
		return jwt.NoFault, nil
	}
	return final, by
}

// verify checks the tokens in all locations of a provider. All of them must be valid.
func (a *authentication) verify(name string, audiences []string) jwt.Fault {
	p := a.providers[name]
	tokens := a.tokens(p)
	if len(tokens) == 0 {
		return missingToken
	}
	for _, text := range slices.Backward(tokens) {
		t, fault := jwt.Parse(text, jwt.AllAlgorithms)
		if fault == jwt.NoFault {
			fault = checkToken(t, p, audiences)
		}
		if fault != jwt.NoFault {
			return fault
		}
		a.issuer = t.Issuer()
		if p.PayloadInMetadata != "" {
			claims := maps.Clone(t.Claims)
			split(claims, p.GetNormalizePayloadInMetadata().GetSpaceDelimitedClaims())
			if a.payload == nil {
				a.payload = map[string]any{}
			}
			a.payload[p.PayloadInMetadata] = claims
		}
	}
	return jwt.NoFault
}

// tokens returns the tokens in the locations of a provider: headers, parameters, then cookies.
func (a *authentication) tokens(p *jwtv3.JwtProvider) (found []string) {
	headers, parameters := p.GetFromHeaders(), p.GetFromParams()
	if len(headers)+len(parameters)+len(p.GetFromCookies()) == 0 {
		headers = []*jwtv3.JwtHeader{{Name: "authorization", ValuePrefix: "Bearer "}}
		parameters = []string{"access_token"}
	}
	slices.SortFunc(headers, func(a, b *jwtv3.JwtHeader) int {
		return strings.Compare(strings.ToLower(a.Name)+a.ValuePrefix,
			strings.ToLower(b.Name)+b.ValuePrefix)
	})
	for _, location := range headers {
		for _, h := range a.request.Headers {
			if !strings.EqualFold(h.Name, location.Name) {
				continue
			}
			if text, ok := afterPrefix(h.Value, location.ValuePrefix); ok {
				found = append(found, text)
			}
		}
	}
	_, query, _ := strings.Cut(a.request.Path, "?")
	for _, name := range slices.Sorted(slices.Values(parameters)) {
		if value, ok := queryValue(query, name); ok {
			found = append(found, value)
		}
	}
	for _, name := range slices.Sorted(slices.Values(p.GetFromCookies())) {
		if value, ok := a.cookie(name); ok {
			found = append(found, value)
		}
	}
	return found
}

// afterPrefix returns the token that follows a prefix, which may be anywhere in a header.
func afterPrefix(value, prefix string) (string, bool) {
	if prefix == "" {
		return value, true
	}
	at := strings.Index(value, prefix)
	if at < 0 {
		return "", false
	}
	rest := value[at+len(prefix):]
	start := strings.IndexFunc(rest, func(r rune) bool {
		return r < 0x80 && strings.ContainsRune("-_.", r) || r >= '0' && r <= '9' ||
			r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	})
	if start < 0 {
		return value, true
	}
	return rest[start:], true
}

// queryValue returns the first value of a query parameter, decoded.
func queryValue(query, name string) (string, bool) {
	for part := range strings.SplitSeq(query, "&") {
		key, value, _ := strings.Cut(part, "=")
		if decoded, err := url.PathUnescape(value); err == nil {
			value = decoded
		}
		if key == name && part != "" {
			return value, true
		}
	}
	return "", false
}

func (a *authentication) cookie(name string) (string, bool) {
	for _, h := range a.request.Headers {
		if !strings.EqualFold(h.Name, "cookie") {
			continue
		}
		for part := range strings.SplitSeq(h.Value, ";") {
			if key, value, ok := strings.Cut(strings.TrimSpace(part), "="); ok && key == name {
				return strings.Trim(value, `"`), true
			}
		}
	}
	return "", false
}
