package model

import (
	"fmt"
	"slices"
	"strings"
	"time"

	security "istio.io/api/security/v1beta1"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/jwks"
)

// TokenRule is a rule of a RequestAuthentication, with its origin.
type TokenRule struct {
	*security.JWTRule
	Object *object.Object
	Field  string // path of the rule in Object
}

// Source returns from where the key set of the rule is fetched; ok is false if the rule contains
// the key set.
func (r TokenRule) Source() (from jwks.Source, ok bool) {
	return jwks.SourceOf(r.Issuer, r.JwksUri), r.Jwks == ""
}

// TokenRules returns the rules of the RequestAuthentications of a proxy, sorted by issuer. As in
// Istio, rules with the same issuer are ordered: those of the proxy's namespace precede those of
// the root namespace.
func (w *World) TokenRules(node Node) []TokenRule {
	var own, root []TokenRule
	for _, o := range w.SecurityPolicies(object.RequestAuthentication, node) {
		if o.Namespace == node.Namespace {
			own = append(own, tokenRules(o)...)
		} else {
			root = append(root, tokenRules(o)...)
		}
	}
	all := slices.Concat(own, root)
	slices.SortStableFunc(all, func(a, b TokenRule) int {
		return strings.Compare(a.Issuer, b.Issuer)
	})
	return all
}

func tokenRules(o *object.Object) []TokenRule {
	var all []TokenRule
	for i, rule := range o.Spec.(*security.RequestAuthentication).JwtRules {
		all = append(all, TokenRule{rule, o, fmt.Sprintf("jwtRules[%d]", i)})
	}
	return all
}

// KeySources returns the sources of all key sets that RequestAuthentications need, with the
// time-out for a fetch of each.
func (w *World) KeySources() map[jwks.Source]time.Duration {
	all := map[jwks.Source]time.Duration{}
	for _, policies := range w.policies {
		for _, o := range policies {
			if o.Kind != object.RequestAuthentication {
				continue
			}
			for _, rule := range tokenRules(o) {
				if from, ok := rule.Source(); ok {
					all[from] = max(all[from], rule.Timeout.AsDuration())
				}
			}
		}
	}
	return all
}

// SetKeySets sets the function that returns the key set of a source, "" if it is unknown. The
// function must not block. Without it all key sets are unknown.
func (w *World) SetKeySets(keys func(jwks.Source) string) { w.keySets = keys }

// KeySet returns the key set of a rule, or jwks.NoKeys while it is unknown.
func (w *World) KeySet(rule TokenRule) string {
	from, fetched := rule.Source()
	if !fetched {
		return rule.Jwks
	}
	if w.keySets != nil {
		if keys := w.keySets(from); keys != "" {
			return keys
		}
	}
	return jwks.NoKeys()
}

// Names reports whether a ServiceEntry names a host or address exactly, not by a pattern.
func (w *World) Names(host string) bool {
	return len(w.entries[host])+len(w.addresses[host]) > 0
}
