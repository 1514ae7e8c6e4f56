package decisiontable

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	securityv1beta1 "istio.io/api/security/v1beta1"
)

// requestsFor adds requests to a case: for each rule of its policies one that the rule matches, as
// far as a client can achieve that, and variants that differ in one property.
func (m *maker) requestsFor(c *testCase) {
	m.t.Helper()
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(c.from))
	w := &witness{maker: m, random: rand.New(rand.NewPCG(seed, hash.Sum64()))}
	base := func() *client {
		return &client{request: &request{method: "GET", path: "/", host: "any.test",
			source: "127.0.0.1"}}
	}
	c.requests = append(c.requests, base().request, &request{tcp: true, source: "127.0.0.1"})
	var policies []*securityv1beta1.AuthorizationPolicy
	for _, object := range c.objects {
		switch object["kind"] {
		case "AuthorizationPolicy":
			policy := &securityv1beta1.AuthorizationPolicy{}
			m.spec(object, policy)
			policies = append(policies, policy)
		case "RequestAuthentication":
			authentication := &securityv1beta1.RequestAuthentication{}
			m.spec(object, authentication)
			w.rules = append(w.rules, authentication.JwtRules...)
		}
	}
	for _, rule := range w.rules {
		for _, fault := range []string{valid, valid, expired, early, foreign, unknown, garbled,
			altered} {
			by := base()
			by.fault, by.path = fault, "/"+fault
			by.claim("iss", rule.Issuer)
			by.claim("sub", "someone")
			if len(rule.Audiences) > 0 && w.random.IntN(3) > 0 {
				by.claims["aud"] = []any{"x", pick(w.random, rule.Audiences)}
			}
			by.rule = rule
			w.send(c, by)
		}
		for _, claims := range []map[string]any{{"group": "ops"}, {"group": []any{"dev", "ops"}},
			{"realm": map[string]any{"role": "admin"}}, {"scope": "read write"}} {
			by := base()
			by.path, by.rule, by.claims = "/claims", rule, maps.Clone(claims)
			by.claim("iss", rule.Issuer)
			by.claim("sub", "someone")
			if len(rule.Audiences) > 0 {
				by.claims["aud"] = rule.Audiences[0]
			}
			w.send(c, by)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.keys.istioTokens)) {
		if len(w.rules) > 0 && slices.ContainsFunc(w.rules, func(r *securityv1beta1.JWTRule) bool {
			return r.Jwks == m.keys.istioSet
		}) {
			by := base()
			by.path = "/" + name
			by.headers = [][2]string{{"authorization", "Bearer " + m.keys.istioTokens[name]}}
			w.send(c, by)
		}
	}
	for _, policy := range policies {
		for _, rule := range policy.Rules {
			for range 2 {
				by := base()
				w.satisfy(by, rule)
				w.send(c, by)
				w.vary(by)
				w.send(c, by)
			}
		}
	}
}

// spec decodes the spec of an object into a message.
func (m *maker) spec(object map[string]any, into proto.Message) {
	m.t.Helper()
	text, err := json.Marshal(object["spec"])
	if err == nil && string(text) != "null" {
		err = protojson.Unmarshal(text, into)
	}
	if err != nil {
		m.t.Fatalf("%v: %v", object, err)
	}
}

// client is a request under construction, with the claims of its token.
type client struct {
	*request
	claims map[string]any
	fault  string
	rule   *securityv1beta1.JWTRule // rule that determines where the token is
}

func (c *client) claim(name, value string) {
	if c.claims == nil {
		c.claims = map[string]any{}
	}
	c.claims[name] = value
}

// witness constructs requests that rules match.
type witness struct {
	*maker
	random *rand.Rand
	rules  []*securityv1beta1.JWTRule
}

func pick[T any](random *rand.Rand, of []T) T { return of[random.IntN(len(of))] }

// fill returns a text that matches a pattern of Istio.
func fill(pattern string) string {
	pattern = strings.NewReplacer("{**}", "a/b", "{*}", "one").Replace(pattern)
	if pattern == "*" {
		return "anything"
	}
	return strings.ReplaceAll(pattern, "*", "filled")
}

// value returns a text that matches one of the patterns, "" if there are none.
func (w *witness) value(patterns []string) string {
	if len(patterns) == 0 {
		return ""
	}
	return fill(pick(w.random, patterns))
}

// satisfy changes a request so that a rule matches it.
func (w *witness) satisfy(by *client, rule *securityv1beta1.Rule) {
	if len(rule.From) > 0 {
		w.from(by, pick(w.random, rule.From).Source)
	}
	if len(rule.To) > 0 {
		to := pick(w.random, rule.To).Operation
		for value, set := range map[string]*string{w.value(to.GetMethods()): &by.method,
			w.value(to.GetHosts()): &by.host, w.value(to.GetPaths()): &by.path} {
			if value != "" {
				*set = value
			}
		}
		if !strings.HasPrefix(by.path, "/") {
			by.path = "/" + by.path
		}
	}
	for _, condition := range rule.When {
		w.condition(by, condition.Key, condition.Values)
	}
}

func (w *witness) from(by *client, source *securityv1beta1.Source) {
	w.condition(by, "source.principal", source.GetPrincipals())
	w.condition(by, "source.namespace", source.GetNamespaces())
	w.condition(by, "source.trustDomain", source.GetTrustDomains())
	w.condition(by, "request.auth.principal", source.GetRequestPrincipals())
	w.condition(by, "source.ip", source.GetIpBlocks())
	w.condition(by, "remote.ip", source.GetRemoteIpBlocks())
	if len(source.GetServiceAccounts()) > 0 {
		namespace, account, ok := strings.Cut(pick(w.random, source.ServiceAccounts), "/")
		if !ok {
			namespace, account = "foo", namespace
		}
		by.identity = "spiffe://cluster.local/ns/" + namespace + "/sa/" + account
	}
}

// condition changes a request so that a condition matches it.
func (w *witness) condition(by *client, key string, values []string) {
	value := w.value(values)
	name, inner, _ := strings.Cut(strings.TrimSuffix(key, "]"), "[")
	if value == "" {
		return
	}
	switch name {
	case "request.headers":
		if inner == ":method" {
			by.method = value
		} else if !strings.HasPrefix(inner, ":") {
			by.headers = append(by.headers, [2]string{inner, value})
		}
	case "source.principal":
		by.identity = "spiffe://" + strings.Replace(value, "filled/ns", "some-td/ns", 1)
		if !strings.Contains(value, "/") {
			by.identity = "spiffe://cluster.local/ns/foo/sa/" + value
		}
	case "source.namespace":
		by.identity = "spiffe://cluster.local/ns/" + value + "/sa/someone"
	case "source.trustDomain":
		by.identity = "spiffe://" + value + "/ns/foo/sa/someone"
	case "source.ip":
		if address, _, _ := strings.Cut(value, "/"); strings.HasPrefix(address, "127.") {
			by.source = address
		}
	case "remote.ip":
		address, _, _ := strings.Cut(value, "/")
		by.headers = append(by.headers, [2]string{"x-forwarded-for", address})
	case "connection.sni":
		by.sni = value
		if by.identity == "" {
			by.identity = "spiffe://cluster.local/ns/foo/sa/someone"
		}
	case "request.auth.principal":
		at := strings.LastIndex(value, "/")
		by.claim("iss", value[:max(at, 0)])
		by.claim("sub", value[at+1:])
	case "request.auth.audiences":
		by.claim("aud", value)
	case "request.auth.presenter":
		by.claim("azp", value)
	case "request.auth.claims":
		by.claim("iss", w.issuer())
		by.claim("sub", "someone")
		names := strings.Split(inner, "][")
		into := by.claims
		for _, name := range names[:len(names)-1] {
			next, _ := into[name].(map[string]any)
			if next == nil {
				next = map[string]any{}
			}
			into[name], into = next, next
		}
		last := names[len(names)-1]
		into[last] = pick(w.random, []any{value, []any{"other", value}, []any{value}})
		if last == "iss" || last == "sub" {
			into[last] = value
		}
	}
}

// issuer returns an issuer whose tokens are accepted.
func (w *witness) issuer() string {
	if len(w.rules) == 0 {
		return "nobody"
	}
	return pick(w.random, w.rules).Issuer
}

// send adds the request to a case.
func (w *witness) send(c *testCase, by *client) {
	sent := *by.request
	sent.headers = slices.Clone(by.headers)
	if by.claims != nil {
		rule := by.rule
		if rule == nil {
			rule = &securityv1beta1.JWTRule{}
			if at := slices.IndexFunc(w.rules, func(r *securityv1beta1.JWTRule) bool {
				return r.Issuer == by.claims["iss"]
			}); at >= 0 {
				rule = w.rules[at]
			}
		}
		w.place(&sent, rule, w.keys.sign(w.t, by.claims, by.fault))
	}
	if c.kind == "router" {
		sent.identity, sent.sni = "", "" // the servers of the case do not use TLS
	}
	if sent.identity != "" && sent.sni == "" {
		sent.sni = "outbound_.80_._." + service + ".test"
	}
	c.requests = append(c.requests, &sent)
	if w.random.IntN(4) == 0 {
		c.requests = append(c.requests, &request{tcp: true, source: sent.source,
			identity: sent.identity, sni: sent.sni})
	}
}

// place adds a token to a request at the location that a rule expects.
func (w *witness) place(r *request, rule *securityv1beta1.JWTRule, token string) {
	switch {
	case len(rule.FromHeaders) > 0 && w.random.IntN(2) == 0:
		from := pick(w.random, rule.FromHeaders)
		r.headers = append(r.headers, [2]string{from.Name, from.Prefix + token})
	case len(rule.FromParams) > 0:
		separator := "?"
		if strings.Contains(r.path, "?") {
			separator = "&"
		}
		r.path += separator + pick(w.random, rule.FromParams) + "=" + token
	case len(rule.FromCookies) > 0:
		r.headers = append(r.headers, [2]string{"cookie",
			fmt.Sprintf("a=b; %s=%s", pick(w.random, rule.FromCookies), token)})
	default:
		r.headers = append(r.headers, [2]string{"authorization", "Bearer " + token})
	}
}

// vary changes one property of a request.
func (w *witness) vary(by *client) {
	clean, query, _ := strings.Cut(by.path, "?")
	_ = query
	for range 1 + w.random.IntN(2) {
		switch w.random.IntN(9) {
		case 0:
			by.method = pick(w.random, []string{"GET", "POST", "DELETE", "HEAD", "get", "x"})
		case 1, 2, 3:
			by.path = pick(w.random, []string{clean + "/", clean + "x", "/x" + clean,
				"/x/.." + clean, "/%2e%2e" + clean, "/" + clean, clean + "?a=" + clean,
				strings.Replace(clean, "/", "%2F", 2), clean + "%2fx", clean + ";x",
				strings.ToUpper(clean), clean + "#x", strings.ReplaceAll(clean, "e", "%65"),
				clean + "/..", clean + "/./x/y", `/x\..` + clean, clean + "//y"})
		case 4:
			by.host = pick(w.random, []string{strings.ToUpper(by.host), by.host + ":80", "x." +
				by.host, "other.test", by.host + "."})
		case 5:
			by.identity = pick(w.random, []string{"", "spiffe://cluster.local/ns/foo/sa/other",
				"spiffe://alias.example/ns/foo/sa/a", "spiffe://evil.example/ns/foo/sa/a",
				strings.Replace(by.identity, "cluster.local", "td1", 1),
				strings.Replace(by.identity, "/ns/", "/ns/x", 1)})
		case 6:
			by.source = pick(w.random, []string{"127.0.0.1", "127.0.0.2", "127.0.0.9",
				"127.0.5.7"})
		case 7:
			by.headers = nil
		case 8:
			by.fault = pick(w.random, []string{expired, foreign, unknown, garbled, altered})
		}
	}
}
