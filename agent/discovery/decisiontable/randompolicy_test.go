package decisiontable

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
)

// fullEnvironment is the environment variable that makes the number of random cases ten times as
// large.
const fullEnvironment = "OUTRIDER_TEST_FULL"

// randomCount is the number of cases with random policies.
const randomCount = 60

// seedEnvironment is the environment variable that overrides the seed of the random cases.
const seedEnvironment = "OUTRIDER_DECISION_SEED"

// randomCases adds cases with random policies.
func (m *maker) randomCases() {
	m.t.Helper()
	from, count := uint64(seed), randomCount
	if text := os.Getenv(seedEnvironment); text != "" {
		var err error
		if from, err = strconv.ParseUint(text, 10, 64); err != nil {
			m.t.Fatal(err)
		}
	}
	if os.Getenv(fullEnvironment) != "" {
		count *= 10
	}
	m.t.Logf("random policies from seed %d (%s)", from, seedEnvironment)
	for i := range count {
		g := &generator{random: rand.New(rand.NewPCG(from, uint64(i)))}
		kind := "sidecar"
		if g.one(3) {
			kind = "router"
		}
		c := m.add(fmt.Sprintf("random %d of seed %d", i, from), kind, textOf(g.objects()))
		if kind == "router" {
			c.trustedProxies = g.random.IntN(3)
		}
	}
}

// generator generates random policies.
type generator struct {
	random *rand.Rand
	// the policy is for an external authorizer, which is called before identities and tokens are
	// known
	custom bool
}

func (g *generator) one(in int) bool { return g.random.IntN(in) == 0 }

// some returns one to three of the values.
func (g *generator) some(of ...string) []any {
	picked := []any{}
	for range 1 + g.random.IntN(3) {
		picked = append(picked, pick(g.random, of))
	}
	return picked
}

func (g *generator) objects() (objects []map[string]any) {
	for i := range g.random.IntN(3) {
		objects = append(objects, g.object("RequestAuthentication", i, g.authentication()))
	}
	for i := range 1 + g.random.IntN(3) {
		g.custom = false
		objects = append(objects, g.object("AuthorizationPolicy", i, g.policy()))
	}
	return objects
}

func (g *generator) object(kind string, number int, spec map[string]any) map[string]any {
	metadata := map[string]any{"name": fmt.Sprintf("p%d", number)}
	if kind == "AuthorizationPolicy" && g.one(8) && (spec["action"] == nil ||
		spec["action"] == "DENY") {
		metadata["annotations"] = map[string]any{"istio.io/dry-run": "true"}
	}
	switch g.random.IntN(6) {
	case 0:
		metadata["namespace"] = rootNamespace
		metadata["name"] = fmt.Sprintf("NAME-%s-%d", "p", number)
		spec["selector"] = map[string]any{"matchLabels": map[string]any{"case": "NAME"}}
	case 1:
		spec["selector"] = map[string]any{"matchLabels": map[string]any{"app": service}}
	case 2:
		spec["selector"] = map[string]any{"matchLabels": map[string]any{"app": service,
			"version": pick(g.random, []string{"v1", "v1", "v2"})}}
	}
	return map[string]any{"apiVersion": "security.istio.io/v1", "kind": kind, "metadata": metadata,
		"spec": spec}
}

func (g *generator) authentication() map[string]any {
	rules := []any{}
	for range 1 + g.random.IntN(2) {
		rule := map[string]any{"issuer": pick(g.random, []string{"issuer-a", "issuer-b",
			"https://issuer.test"}), "jwks": "JWKS"}
		if g.one(3) {
			rule["audiences"] = g.some("aud-a", "https://aud-b/", "aud-c")
		}
		switch g.random.IntN(5) {
		case 0:
			rule["fromHeaders"] = []any{map[string]any{"name": "x-token", "prefix": "Token "}}
		case 1:
			rule["fromParams"] = []any{"token"}
		case 2:
			rule["fromCookies"] = []any{"session"}
		}
		if g.one(3) {
			rule["forwardOriginalToken"] = true
		}
		if g.one(3) {
			rule["outputPayloadToHeader"] = "x-payload"
			rule["outputClaimToHeaders"] = []any{map[string]any{"header": "x-subject",
				"claim": "sub"}}
		}
		rules = append(rules, rule)
	}
	return map[string]any{"jwtRules": rules}
}

func (g *generator) policy() map[string]any {
	spec := map[string]any{}
	switch g.random.IntN(10) {
	case 0:
		spec["action"] = "AUDIT"
	case 1, 2:
		spec["action"], g.custom = "CUSTOM", true
		spec["provider"] = map[string]any{"name": pick(g.random, []string{"default", "grpc",
			"dead", "open", "missing"})}
	case 3, 4, 5:
		spec["action"] = "DENY"
	}
	rules := []any{}
	for range g.random.IntN(4) {
		rules = append(rules, g.rule())
	}
	if len(rules) > 0 || !g.one(3) {
		spec["rules"] = rules
	}
	if spec["action"] != nil && len(rules) == 0 {
		spec["rules"] = []any{g.rule()} // only an ALLOW policy may have no rules
	}
	return spec
}

func (g *generator) rule() map[string]any {
	rule := map[string]any{}
	if g.one(2) {
		from := []any{}
		for range 1 + g.random.IntN(2) {
			from = append(from, map[string]any{"source": g.source()})
		}
		rule["from"] = from
	}
	if g.one(2) {
		to := []any{}
		for range 1 + g.random.IntN(2) {
			to = append(to, map[string]any{"operation": g.operation()})
		}
		rule["to"] = to
	}
	if g.one(3) {
		when := []any{}
		for range 1 + g.random.IntN(2) {
			when = append(when, g.condition())
		}
		rule["when"] = when
	}
	return rule
}

// fields returns one to three of the named fields, some of them with the prefix "not".
func (g *generator) fields(of map[string][]string, names []string) map[string]any {
	made := map[string]any{}
	for range 1 + g.random.IntN(3) {
		name := pick(g.random, names)
		key := name
		if g.one(4) {
			key = "not" + string(name[0]-'a'+'A') + name[1:]
		}
		made[key] = g.some(of[name]...)
	}
	return made
}

func (g *generator) source() map[string]any {
	names := []string{"ipBlocks", "remoteIpBlocks"}
	if !g.custom {
		names = append(names, "principals", "requestPrincipals", "namespaces")
	}
	if g.one(5) && !g.custom {
		return map[string]any{"serviceAccounts": g.some("shop/web", "api", "bank/teller")}
	}
	return g.fields(map[string][]string{
		"principals": {"cluster.local/ns/shop/sa/web", "*", "td1/ns/bank/sa/teller",
			"cluster.local/ns/shop/*", "*/sa/web"},
		"requestPrincipals": {"issuer-a/alice", "*", "issuer-b/*", "*/bob",
			"https://issuer.test/alice"},
		"namespaces":     {"shop", "bank", "sh*", "*nk", "*"},
		"ipBlocks":       {"127.0.0.2", "127.0.0.0/30", "127.0.5.0/24", "10.0.0.0/8"},
		"remoteIpBlocks": {"127.0.0.2", "198.51.100.0/24", "203.0.113.9"},
	}, names)
}

func (g *generator) operation() map[string]any {
	return g.fields(map[string][]string{
		"hosts":   {"a.test", "*.a.test", "A.TEST", "b.*", "*", "a.test:80"},
		"ports":   {"PORT", "TPORT", "80"},
		"methods": {"GET", "POST", "P*", "*", "*ELETE"},
		"paths": {"/admin", "/admin/*", "*.json", "*", "/v1/{*}/items", "/v1/{**}", "/Public",
			"/a/{*}/b/{**}"},
	}, []string{"hosts", "ports", "methods", "paths", "paths"})
}

func (g *generator) condition() map[string]any {
	values := map[string][]string{
		"request.headers[X-Role]":              {"admin", "ad*", "*min", "*"},
		"request.headers[user-agent]":          {"curl*", "*"},
		"source.ip":                            {"127.0.0.2", "127.0.0.0/29"},
		"remote.ip":                            {"198.51.100.7", "127.0.0.0/8"},
		"source.namespace":                     {"shop", "b*"},
		"source.principal":                     {"cluster.local/ns/shop/sa/web", "*"},
		"request.auth.principal":               {"issuer-a/alice", "*"},
		"request.auth.audiences":               {"aud-a", "aud-*"},
		"request.auth.presenter":               {"client-1", "*"},
		"request.auth.claims[groups]":          {"ops", "dev*", "*"},
		"request.auth.claims[scope]":           {"read", "write"},
		"request.auth.claims[realm][roles]":    {"admin", "*er"},
		"destination.ip":                       {"127.0.0.1", "10.0.0.0/8"},
		"destination.port":                     {"PORT", "TPORT"},
		"connection.sni":                       {"*.test", "a.test"},
		"request.headers[:method]":             {"GET", "POST"},
		"experimental.envoy.filters.a.b[name]": {"x"},
	}
	key := pick(g.random, slices.Sorted(maps.Keys(values)))
	for g.custom && (strings.HasPrefix(key, "request.auth") || strings.HasPrefix(key, "source.n") ||
		strings.HasPrefix(key, "source.p")) {
		key = pick(g.random, slices.Sorted(maps.Keys(values)))
	}
	condition := map[string]any{"key": key}
	if !g.one(4) {
		condition["values"] = g.some(values[key]...)
	}
	if condition["values"] == nil || g.one(4) {
		condition["notValues"] = g.some(values[key]...)
	}
	return condition
}
