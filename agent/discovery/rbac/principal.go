package rbac

import (
	"fmt"
	"regexp"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

const spiffe = "spiffe://"

var principals = logic[*rbacv3.Principal]{
	any: &rbacv3.Principal{Identifier: &rbacv3.Principal_Any{Any: true}},
	and: func(all ...*rbacv3.Principal) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_AndIds{
			AndIds: &rbacv3.Principal_Set{Ids: all}}}
	},
	or: func(all ...*rbacv3.Principal) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{
			OrIds: &rbacv3.Principal_Set{Ids: all}}}
	},
	not: func(p *rbacv3.Principal) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: p}}
	},
}

// principal returns a principal that matches any of the values of an attribute of the source.
func (t Translator) principal(attribute string, values []string) *rbacv3.Principal {
	switch {
	case attribute == requestPrincipal:
		return requestPrincipals(values)
	case attribute == requestAudiences:
		return claim([]string{"aud"}, values)
	case attribute == requestPresenter:
		return claim([]string{"azp"}, values)
	case strings.HasPrefix(attribute, requestClaims):
		return claim(bracketed(strings.TrimPrefix(attribute, requestClaims)), values)
	case attribute == sourcePrincipal:
		values = t.aliases(values)
	case attribute == sourceTrustDomain:
		values = t.domains(values)
	}
	return each(values, principals, func(value string) *rbacv3.Principal {
		switch attribute {
		case sourceIP:
			return &rbacv3.Principal{Identifier: &rbacv3.Principal_DirectRemoteIp{
				DirectRemoteIp: block(value)}}
		case remoteIP:
			return &rbacv3.Principal{Identifier: &rbacv3.Principal_RemoteIp{
				RemoteIp: block(value)}}
		case sourcePrincipal:
			return authenticated(identity(value))
		case sourceNamespace:
			parts := strings.Split(value, "*")
			for i := range parts {
				parts[i] = regexp.QuoteMeta(parts[i])
			}
			return authenticated(pattern(".*/ns/" + strings.Join(parts, ".*") + "/.*"))
		case sourceAccount:
			return authenticated(pattern(t.account(value)))
		case sourceTrustDomain:
			return authenticated(trustDomain(value))
		}
		name := strings.TrimPrefix(strings.TrimSuffix(attribute, "]"), requestHeaders+"[")
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_Header{
			Header: header(name, value, false)}}
	})
}

// authenticated returns a principal that matches the SPIFFE ID of a client's certificate.
func authenticated(name *matcherv3.StringMatcher) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{
		Authenticated: &rbacv3.Principal_Authenticated{PrincipalName: name}}}
}

// identity returns a matcher for SPIFFE IDs; the value lacks the scheme spiffe://.
func identity(value string) *matcherv3.StringMatcher {
	switch {
	case value == "*":
		return pattern(".+")
	case strings.HasPrefix(value, "*"):
		return pattern(spiffe + ".*" + regexp.QuoteMeta(value[1:]))
	case strings.HasSuffix(value, "*"):
		return prefix(spiffe + strings.TrimSuffix(value, "*"))
	}
	return exactly(spiffe + value)
}

// account returns the regular expression for the SPIFFE IDs of a service account, which is written
// as ACCOUNT or NAMESPACE/ACCOUNT.
func (t Translator) account(value string) string {
	namespace, account, ok := strings.Cut(value, "/")
	if !ok {
		namespace, account = t.Namespace, value
	}
	return fmt.Sprintf("spiffe://.+/ns/%s/(.+/|)sa/%s(/.+)?", regexp.QuoteMeta(namespace),
		regexp.QuoteMeta(account))
}

// trustDomain returns a matcher for the SPIFFE IDs of a trust domain.
func trustDomain(value string) *matcherv3.StringMatcher {
	before, after, wildcard := strings.Cut(value, "*")
	switch {
	case value == "*":
		return prefix(spiffe)
	case !wildcard:
		return prefix(spiffe + value + "/")
	}
	return pattern(spiffe + regexp.QuoteMeta(before) + "[^/]*" + regexp.QuoteMeta(after) + "/.*")
}

// requestPrincipals returns a principal that matches issuer and subject of a token, written as
// ISSUER/SUBJECT.
func requestPrincipals(values []string) *rbacv3.Principal {
	all := make([]*rbacv3.Principal, len(values))
	for i, value := range values {
		issuer, subject := tokenParts(value)
		all[i] = principals.and(claimPrincipal([]string{"iss"}, stringValue(issuer)),
			claimPrincipal([]string{"sub"}, stringValue(subject)))
	}
	if len(all) == 1 {
		return all[0]
	}
	return principals.or(all...)
}

// tokenParts returns the matchers for issuer and subject. They are separated by the last slash,
// because an issuer may be a URL. A wildcard belongs to the part that begins or ends with it.
func tokenParts(value string) (issuer, subject *matcherv3.StringMatcher) {
	something := pattern(".+")
	at := strings.LastIndexByte(value, '/')
	first, last := value, ""
	if at >= 0 {
		first, last = value[:at], value[at+1:]
	}
	switch {
	case value == "*":
		return something, something
	case strings.HasPrefix(value, "*") && at < 0:
		return something, suffix(value[1:])
	case strings.HasPrefix(value, "*") && first == "*":
		return something, exactly(last)
	case strings.HasPrefix(value, "*"):
		return suffix(first[1:]), exactly(last)
	case strings.HasSuffix(value, "*") && at < 0:
		return prefix(strings.TrimSuffix(value, "*")), something
	case last == "*":
		return exactly(first), something
	case strings.HasSuffix(value, "*"):
		return exactly(first), prefix(strings.TrimSuffix(last, "*"))
	}
	return exactly(first), exactly(last)
}

// claim returns a principal that matches a token whose claim is one of the values, or a list that
// contains one of them.
func claim(names, values []string) *rbacv3.Principal {
	alternatives := make([]*matcherv3.ValueMatcher, len(values))
	for i, value := range values {
		alternatives[i] = textValue(value)
	}
	value := oneOf(alternatives)
	return claimPrincipal(names, &matcherv3.ValueMatcher{
		MatchPattern: &matcherv3.ValueMatcher_OrMatch{OrMatch: &matcherv3.OrMatcher{
			ValueMatchers: []*matcherv3.ValueMatcher{inList(value), value}}}})
}

func claimPrincipal(names []string, value *matcherv3.ValueMatcher) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_SourcedMetadata{
		SourcedMetadata: metadata(TokenFilter, append([]string{TokenClaims}, names...), value)}}
}

// bracketed returns the names in a sequence of brackets, such as [a][b]. For any other text it
// returns one name: the text without its first and last character.
func bracketed(text string) []string {
	var names []string
	for rest := text; rest != ""; {
		end := strings.IndexByte(rest, ']')
		if end < 0 || rest[0] != '[' || strings.Contains(rest[1:end], "[") {
			return []string{strings.TrimPrefix(strings.TrimSuffix(text, "]"), "[")}
		}
		names, rest = append(names, rest[1:end]), rest[end+1:]
	}
	return names
}
