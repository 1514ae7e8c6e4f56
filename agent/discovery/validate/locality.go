package validate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

func (c *checker) localityLoadBalancer(field string, l *networking.LocalityLoadBalancerSetting,
	outlier *networking.OutlierDetection) {
	if l == nil {
		return
	}
	if len(l.Distribute) > 0 && len(l.Failover) > 0 {
		c.fail(field+".distribute", "excludes failover, and both are given", "keep one")
	}
	if len(l.Distribute) > 0 && len(l.FailoverPriority) > 0 {
		c.warn(field+".failoverPriority", "has no effect beside distribute", "keep one")
	}
	if (len(l.Failover) > 0 || len(l.FailoverPriority) > 0) && outlier == nil {
		c.warn(field,
			"without outlierDetection no endpoint ever counts as failed, and there is no failover",
			"write outlierDetection beside loadBalancer")
	}
	for i, text := range l.FailoverPriority {
		path := fmt.Sprintf("%s.failoverPriority[%d]", field, i)
		label, _, _ := strings.Cut(text, "=")
		if label == "" {
			c.fail(path, "the label has no name", "write the label's key, or key=value")
		}
		if len(l.Failover) > 0 && slices.Contains(model.TopologyLabels[:], label) {
			c.fail(path, fmt.Sprintf("failover speaks of regions too, and excludes %s", label),
				"keep one")
		}
	}
	for i, f := range l.Failover {
		c.failover(fmt.Sprintf("%s.failover[%d]", field, i), f.GetFrom(), f.GetTo())
	}
	var from []string
	for i, d := range l.Distribute {
		path := fmt.Sprintf("%s.distribute[%d]", field, i)
		from = append(from, d.GetFrom())
		c.shares(path+".to", d.GetTo())
	}
	c.localities(field+".distribute", from)
}

func (c *checker) failover(field, from, to string) {
	for _, end := range []struct{ name, region string }{{"from", from}, {"to", to}} {
		if end.region == "" || strings.ContainsAny(end.region, "/*") {
			c.fail(field+"."+end.name, fmt.Sprintf("%q is no region", end.region),
				"write a region without zone and without *")
		}
	}
	if from == to {
		c.fail(field, fmt.Sprintf("leads from region %s to itself", from), "name another region")
	}
}

func (c *checker) shares(field string, to map[string]uint32) {
	var sum uint64
	for _, where := range slices.Sorted(maps.Keys(to)) {
		if to[where] < 1 || to[where] > 100 {
			c.fail(fmt.Sprintf("%s[%q]", field, where), fmt.Sprintf("%d is not from 1 to 100",
				to[where]), "write a percentage, or leave the locality out")
		}
		sum += uint64(to[where])
	}
	if sum != 100 {
		c.fail(field, fmt.Sprintf("the percentages add up to %d", sum), "make them 100")
	}
	c.localities(field, slices.Sorted(maps.Keys(to)))
}

// localities checks the syntax of localities, and that they do not overlap.
func (c *checker) localities(field string, all []string) {
	for i, text := range all {
		parts := strings.Split(text, "/")
		star := strings.Index(text, "*")
		if len(parts) > 3 || slices.Contains(parts, "") || star >= 0 && (star != len(text)-1 ||
			parts[len(parts)-1] != "*") {
			c.fail(field, fmt.Sprintf("%q is no locality", text),
				"write region, region/zone or region/zone/subzone; the last may be *")
			continue
		}
		for _, other := range all[:i] {
			if overlaps(text, other) {
				c.fail(field, fmt.Sprintf("%s and %s overlap", other, text),
					"name every place once")
			}
		}
	}
}

func overlaps(a, b string) bool {
	a, b = strings.TrimSuffix(strings.TrimSuffix(a, "*"), "/"),
		strings.TrimSuffix(strings.TrimSuffix(b, "*"), "/")
	return a == b || a == "" || b == "" || strings.HasPrefix(a, b+"/") ||
		strings.HasPrefix(b, a+"/")
}
