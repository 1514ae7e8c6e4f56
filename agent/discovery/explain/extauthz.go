package explain

import (
	"strings"

	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"outrider.org/outrider/agent/resource"
)

// authorizer is a filter's configuration for an external authorizer.
type authorizer struct {
	// condition under which the authorizer is called; nil: it is called for every request
	condition *matcherv3.MetadataMatcher
	cluster   string
	failOpen  bool
}

// external evaluates whether an external authorizer is called. How the authorizer decides is not
// known.
func (e *explanation) external(to authorizer, d *listener) {
	var origins []resource.Origin
	by := "every request"
	if to.condition != nil {
		if e.hasMetadata(to.condition) == never {
			return
		}
		origins, by = e.policy(e.custom.policy, d)
	}
	parts := strings.SplitN(to.cluster, "|", 4)
	host := parts[len(parts)-1]
	e.step("policy", "", origins, "calls the external authorizer at "+host+", by "+by)
	e.unknown("what the external authorizer at %s answers", host)
	if reason, _ := e.cluster(to.cluster); reason != "" && !to.failOpen {
		e.unknown("whether the request is refused: %s", reason)
	}
}
