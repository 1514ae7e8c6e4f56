package model

import "strings"

// claimPrefix begins the key of a header match that is for a claim of the request's token.
const claimPrefix = "@request.auth.claims"

// RoutingClaim returns the path to the claim that the key of a header match stands for:
// @request.auth.claims.a.b and @request.auth.claims[a][b] are claim b in claim a.
func RoutingClaim(key string) (path []string, ok bool) {
	if len(key) < len(claimPrefix) || !strings.EqualFold(key[:len(claimPrefix)], claimPrefix) {
		return nil, false
	}
	name := key[len(claimPrefix):]
	switch {
	case len(name) > 1 && name[0] == '.':
		return strings.Split(name[1:], "."), true
	case len(name) > 2 && name[0] == '[' && name[len(name)-1] == ']':
		return strings.Split(name[1:len(name)-1], "]["), true
	}
	return nil, false
}
