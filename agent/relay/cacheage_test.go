package relay

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

// TestCache_MaxAge checks that resources from the file are not served if they were accepted too
// long ago, while resources accepted after the start are served.
func TestCache_MaxAge(t *testing.T) {
	const hour = time.Hour
	before, _ := written(t)
	for _, node := range before.nodes {
		node.saved = time.Now().Add(-hour)
	}
	if err := before.write(); err != nil {
		t.Fatal(err)
	}
	for age, served := range map[time.Duration]bool{0: true, 2 * hour: true, hour / 2: false} {
		after := OpenCache(before.path, condition.NewRegistry())
		after.setMaxAge(age)
		known, _ := after.get("node", clusterType)
		after.reportExpired("node")
		if (known != nil) != served || after.savedAt("node").IsZero() == served ||
			(len(after.board.Conditions()) == 0) != served {
			t.Errorf("at most %v: %v, %v", age, known, after.board.Conditions())
		}
		after.put("node", endpointType, "v", held("new"))
		endpoints, _ := after.get("node", endpointType)
		clusters, _ := after.get("node", clusterType)
		if len(endpoints) != 1 || (clusters != nil) != served || len(after.board.Conditions()) > 0 {
			t.Errorf("at most %v, later: %v, %v, %v", age, endpoints, clusters,
				after.board.Conditions())
		}
	}
	// the maximum age does not apply to resources accepted since the start
	before.setMaxAge(hour / 2)
	if known, _ := before.get("node", clusterType); known == nil {
		t.Error("what was accepted since the start is not served")
	}
}

// TestSession_CacheTooOldIsNotServed checks that an Envoy that starts while the upstream server is
// unreachable receives no resources that are too old, and that the status says so.
func TestSession_CacheTooOldIsNotServed(t *testing.T) {
	for _, age := range []time.Duration{0, time.Minute} {
		cache := OpenCache(filepath.Join(t.TempDir(), "cache"), condition.NewRegistry())
		cache.put(identityOf(testNode(t), "127.0.0.1:1"), clusterType, "v", held("a"))
		cache.nodes[0].saved = time.Now().Add(-time.Hour)
		if err := cache.write(); err != nil {
			t.Fatal(err)
		}
		r := startRelay(t, serverAt("127.0.0.1:1"), cache.path)
		r.SetCacheMaxAge(age)
		c := r.connect(t, false, false)
		c.send(&discoveryv3.DiscoveryRequest{Node: testNode(t), TypeUrl: clusterType})
		if age == 0 {
			c.next()
			if r.condition(conditionExpired) != "" || r.Status().State != Cached {
				t.Errorf("without limit: %+v", r.Status())
			}
			continue
		}
		parts.Eventually(t, time.Minute, "the age is reported", func() bool {
			return strings.Contains(r.condition(conditionExpired), "cache_max_age (1m0s)")
		})
		if len(c.received) > 0 || r.Status().State != Connecting {
			t.Errorf("%d responses, %+v", len(c.received), r.Status())
		}
		c.end(nil)
	}
}
