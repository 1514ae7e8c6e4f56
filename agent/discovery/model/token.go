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

// JWTRule is a rule of a RequestAuthentication, with its origin.
type JWTRule struct {
	*security.JWTRule
	Object *object.Object
	Field  string // path of the rule in Object
}

// keySetSource returns the source from which the rule's key set is fetched. ok is false if the rule
// contains its key set.
func (r JWTRule) keySetSource() (from jwks.Source, ok bool) {
	return jwks.SourceOf(r.Issuer, r.JwksUri), r.Jwks == ""
}

// JWTRules returns the rules of the RequestAuthentications of a proxy, sorted by issuer. As in
// Istio, rules with the same issuer are ordered: those of the proxy's namespace precede those of
// the root namespace.
func (w *Mesh) JWTRules(node Node) []JWTRule {
	var own, root []JWTRule
	for _, o := range w.SecurityPolicies(object.RequestAuthentication, node) {
		if o.Namespace == node.Namespace {
			own = append(own, jwtRules(o)...)
		} else {
			root = append(root, jwtRules(o)...)
		}
	}
	all := slices.Concat(own, root)
	slices.SortStableFunc(all, func(a, b JWTRule) int {
		return strings.Compare(a.Issuer, b.Issuer)
	})
	return all
}

func jwtRules(o *object.Object) []JWTRule {
	var all []JWTRule
	for i, rule := range o.Spec.(*security.RequestAuthentication).JwtRules {
		all = append(all, JWTRule{rule, o, fmt.Sprintf("jwtRules[%d]", i)})
	}
	return all
}

// KeySetSources returns the sources of all key sets that RequestAuthentications need, with the
// time-out for a fetch of each.
func (w *Mesh) KeySetSources() map[jwks.Source]time.Duration {
	all := map[jwks.Source]time.Duration{}
	for _, policies := range w.policies {
		for _, o := range policies {
			if o.Kind != object.RequestAuthentication {
				continue
			}
			for _, rule := range jwtRules(o) {
				if from, ok := rule.keySetSource(); ok {
					all[from] = max(all[from], rule.Timeout.AsDuration())
				}
			}
		}
	}
	return all
}

// SetKeySets sets the function that returns the key set of a source, "" if it is unknown. The
// function must not block. Without it all key sets are unknown.
func (w *Mesh) SetKeySets(keys func(jwks.Source) string) { w.keySets = keys }

// KeySet returns the key set of a rule, or jwks.UnusableKeySet while it is unknown.
func (w *Mesh) KeySet(rule JWTRule) string {
	from, fetched := rule.keySetSource()
	if !fetched {
		return rule.Jwks
	}
	if w.keySets != nil {
		if keys := w.keySets(from); keys != "" {
			return keys
		}
	}
	return jwks.UnusableKeySet()
}

// HasExactServiceHost reports whether a ServiceEntry names a host or address exactly, not by a
// pattern.
func (w *Mesh) HasExactServiceHost(host string) bool {
	return len(w.entries[host])+len(w.addresses[host]) > 0
}
