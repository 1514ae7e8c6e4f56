package model

import "strings"

// claimPrefix is the prefix of a header match's key if it matches a claim of the request's token.
const claimPrefix = "@request.auth.claims"

// ParseClaimHeader returns the path to the claim that the key of a header match names: both
// @request.auth.claims.a.b and @request.auth.claims[a][b] name the claim b within the claim a.
func ParseClaimHeader(key string) (path []string, ok bool) {
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
