package translate

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"outrider.org/outrider/agent/discovery/object"
)

// TestClaims adds an older and a younger object with some equal matches. The younger one gets the
// matches that the older one does not have, and a problem for each of the others.
func TestClaims(t *testing.T) {
	older, younger := &object.Object{File: "a.yaml", Line: 1}, &object.Object{File: "b.yaml",
		Line: 1}
	wide, narrow := netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.1.0.0/16")
	var claims FilterChainMatches
	var count int
	for _, route := range []ConnectionRoute{
		{Object: older, ServerNames: []string{"a.test", "b.test"}},
		// two matches of one object may overlap without a problem
		{Object: older, ServerNames: []string{"b.test"}},
		{Object: older, ServerNames: []string{"c.test"}, Subnets: []netip.Prefix{wide}},
		{Object: younger, ServerNames: []string{"b.test", "d.test", "*x.test"}},
		{Object: younger, ServerNames: []string{"c.test", "e.test"}, Subnets: []netip.Prefix{wide,
			narrow}},
		{Object: younger},
		{Object: older},
	} {
		count += len(claims.Add([]ConnectionRoute{route}))
	}
	var got []string
	for _, r := range claims.Routes {
		got = append(got, fmt.Sprint(r.Object.File, r.ServerNames, r.Subnets))
	}
	want := []string{"a.yaml[a.test b.test] []", "a.yaml[c.test] [10.0.0.0/8]", "b.yaml[d.test] []",
		"b.yaml[c.test] [10.1.0.0/16]",
		"b.yaml[e.test] [10.0.0.0/8 10.1.0.0/16]", "b.yaml[] []"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q,\nwant %q", got, want)
	}
	if count != 4 { // routes for b.test, *.x.test, c.test in 10.0.0.0/8, and everything
		t.Errorf("%d problems, want 4", count)
	}
}
