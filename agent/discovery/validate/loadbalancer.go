package validate

import (
	"fmt"

	networking "istio.io/api/networking/v1alpha3"
)

func (c *checker) loadBalancer(field string, l *networking.LoadBalancerSettings,
	outlier *networking.OutlierDetection) {
	if l == nil {
		return
	}
	if l.LocalityLbSetting != nil && l.ZoneAwareLbSetting != nil {
		c.fail(field+".zoneAwareLbSetting", "excludes localityLbSetting, and both are given",
			"keep one")
	}
	c.localityLoadBalancer(field+".localityLbSetting", l.LocalityLbSetting, outlier)
	if l.ZoneAwareLbSetting != nil {
		c.without(field + ".zoneAwareLbSetting")
	}
	c.warmup(field, l)
	if hash := l.GetConsistentHash(); hash != nil {
		c.consistentHash(field+".consistentHash", hash)
	}
}

// warmup checks the newer and the older field for the warm-up. The newer one has precedence.
func (c *checker) warmup(field string, l *networking.LoadBalancerSettings) {
	//nolint:staticcheck // deprecated, but accepted
	c.duration(field+".warmupDurationSecs", l.WarmupDurationSecs, false)
	if l.GetSimple() == networking.LoadBalancerSettings_RANDOM ||
		l.GetSimple() == networking.LoadBalancerSettings_PASSTHROUGH ||
		l.GetConsistentHash() != nil {
		const message, fix = "only ROUND_ROBIN and LEAST_REQUEST warm endpoints up",
			"choose one of them or remove it"
		if l.Warmup != nil {
			c.warn(field+".warmup", message, fix)
		}
		if l.WarmupDurationSecs != nil { //nolint:staticcheck // deprecated, but accepted
			c.warn(field+".warmupDurationSecs", message, fix)
		}
	}
	w := l.Warmup
	if w == nil {
		return
	}
	if w.Duration == nil {
		c.fail(field+".warmup.duration", "is missing", "say for how long an endpoint is new")
	}
	c.duration(field+".warmup.duration", w.Duration, false)
	if p := w.MinimumPercent; p != nil && !(p.Value >= 0 && p.Value <= 100) {
		c.fail(field+".warmup.minimumPercent", fmt.Sprintf("%v is no percentage", p.Value),
			"write a number from 0 to 100")
	}
	if a := w.Aggression; a != nil && !(a.Value > 0) {
		c.fail(field+".warmup.aggression", fmt.Sprintf("%v is not above 0", a.Value),
			"leave it out for 1")
	}
}

func (c *checker) consistentHash(field string,
	hash *networking.LoadBalancerSettings_ConsistentHashLB) {
	switch key := hash.HashKey.(type) {
	case nil:
		c.warn(field, "it is not said what is hashed: requests go anywhere",
			"write httpHeaderName, httpCookie, useSourceIp or httpQueryParameterName")
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName:
		c.header(field+".httpHeaderName", key.HttpHeaderName)
	case *networking.LoadBalancerSettings_ConsistentHashLB_UseSourceIp:
		if !key.UseSourceIp {
			c.warn(field+".useSourceIp", "nothing is hashed: requests go anywhere", "write true")
		}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName:
		if key.HttpQueryParameterName == "" {
			c.fail(field+".httpQueryParameterName", "is empty", "name the parameter")
		}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpCookie:
		c.cookie(field+".httpCookie", key.HttpCookie)
	}
	// Envoy's limits for the size of a hash ring and of a Maglev table
	const largestRing, largestTable = 8 << 20, 5_000_011
	//nolint:staticcheck // deprecated, but accepted
	ring, old := hash.GetRingHash().GetMinimumRingSize(), hash.MinimumRingSize
	if ring > largestRing || old > largestRing {
		c.fail(field, fmt.Sprintf("a ring has at most %d entries", largestRing),
			"write a smaller number")
	}
	if old != 0 && hash.HashAlgorithm != nil {
		c.fail(field+".minimumRingSize", "excludes ringHash and maglev",
			"write it as ringHash.minimumRingSize")
	}
	if old != 0 {
		c.warn(field+".minimumRingSize", "is deprecated", "write it as ringHash.minimumRingSize")
	}
	if maglev := hash.GetMaglev(); maglev != nil {
		if size := maglev.TableSize; size >= largestTable || !prime(size) {
			c.fail(field+".maglev.tableSize", fmt.Sprintf("%d is no prime below %d", size,
				largestTable), "write for example 65537")
		}
	}
}

func (c *checker) cookie(field string,
	cookie *networking.LoadBalancerSettings_ConsistentHashLB_HTTPCookie) {
	// the name of a cookie has the syntax of a header's name
	if !headerName.MatchString(cookie.GetName()) {
		c.fail(field+".name", fmt.Sprintf("%q is no cookie's name", cookie.GetName()),
			"write letters, digits and -_")
	}
	if ttl := cookie.GetTtl(); ttl != nil && ttl.AsDuration() < 0 {
		c.fail(field+".ttl", "is negative", "write 0s for a cookie of the session")
	}
	names := map[string]bool{}
	for i, a := range cookie.GetAttributes() {
		field := fmt.Sprintf("%s.attributes[%d].name", field, i)
		switch {
		case a.GetName() == "":
			c.fail(field, "the attribute has no name", "name it or remove it")
		case names[a.Name]:
			c.fail(field, fmt.Sprintf("%s is given above already", a.Name), "remove one")
		}
		names[a.GetName()] = true
	}
}

func prime(n uint64) bool {
	for d := uint64(2); d*d <= n; d++ {
		if n%d == 0 {
			return false
		}
	}
	return n > 1
}
