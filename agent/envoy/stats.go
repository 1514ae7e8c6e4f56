package envoy

import (
	"context"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Stats returns the counters and gauges whose name matches the regular expression filter (""
// matches all). Histograms and text values are skipped.
func (a *Admin) Stats(ctx context.Context, filter string) (map[string]uint64, error) {
	return a.stats(ctx, "", filter)
}

// Gauges is like Stats but returns gauges only, for which Envoy scans far fewer statistics.
func (a *Admin) Gauges(ctx context.Context, filter string) (map[string]uint64, error) {
	return a.stats(ctx, "type=Gauges&", filter)
}

func (a *Admin) stats(ctx context.Context, kind, filter string) (map[string]uint64, error) {
	path := "/stats?" + kind
	if filter != "" {
		path += "filter=" + strings.ReplaceAll(url.QueryEscape(filter), "+", "%20")
	}
	body, err := a.Get(ctx, path)
	if err != nil {
		return nil, err
	}
	stats := map[string]uint64{}
	for line := range strings.Lines(string(body)) {
		name, text, ok := cutLast(strings.TrimSpace(line), ": ")
		if !ok {
			continue
		}
		if value, err := strconv.ParseUint(text, 10, 64); err == nil {
			stats[name] = value
		}
	}
	return stats, nil
}

// ActiveTraffic is the number of open connections and requests of an epoch. It does not count those
// of the admin interface and of Outrider's own listeners.
type ActiveTraffic struct {
	Connections uint64 // from clients
	Requests    uint64 // HTTP requests in flight, including upgraded connections (WebSocket)
	// Tunnels counts connections other than HTTP, which are not idle until they close.
	Tunnels uint64
}

// Idle reports whether ending Envoy now would cut nothing but idle keep-alive connections, whose
// clients retry.
func (a ActiveTraffic) Idle() bool { return a.Requests == 0 && a.Tunnels == 0 }

// Statistics prefixes of Outrider's own listeners. The bootstrap sets them, and ActiveTraffic
// excludes them.
const (
	PrometheusStatPrefix = "outrider_prometheus" // listener of Envoy's metrics (15090)
	ReadyStatPrefix      = "outrider_ready"      // the listener of readiness (15021)
)

const activityFilter = `^(listener\..+\.downstream_cx_active|http\..+\.downstream_(cx|rq)_active)$`

var (
	// threadStat matches a listener's statistics per thread.
	threadStat = regexp.MustCompile(`\.(worker_\d+|main_thread)\.downstream_cx_active$`)

	// Prefixes of statistics that are not traffic of users: those of Outrider's own listeners, and
	// those that bootstrap templates and istiod give to the same two listeners.
	ownHTTP      = []string{"admin", PrometheusStatPrefix, ReadyStatPrefix, "stats", "agent"}
	ownListeners = []string{"admin", PrometheusStatPrefix, ReadyStatPrefix}
	ownPorts     = []string{"_15021", "_15090"}
)

// ActiveTraffic returns the epoch's activity. If all fields are zero, the epoch can be ended
// without losing requests. An Envoy whose stats matcher excludes downstream_cx_active and
// downstream_rq_active always appears idle.
func (a *Admin) ActiveTraffic(ctx context.Context) (ActiveTraffic, error) {
	stats, err := a.Stats(ctx, activityFilter)
	if err != nil {
		return ActiveTraffic{}, err
	}
	return activity(stats), nil
}

func activity(stats map[string]uint64) ActiveTraffic {
	var found ActiveTraffic
	var http uint64
	for name, value := range stats {
		if rest, ok := strings.CutPrefix(name, "http."); ok {
			prefix, stat, _ := cutLast(rest, ".")
			switch {
			case slices.Contains(ownHTTP, prefix):
			case stat == "downstream_rq_active":
				found.Requests += value
			case stat == "downstream_cx_active":
				http += value
			}
			continue
		}
		if rest, ok := strings.CutPrefix(name, "listener."); ok && !threadStat.MatchString(name) {
			prefix, stat, _ := cutLast(rest, ".")
			if stat == "downstream_cx_active" && !ownListener(prefix) {
				found.Connections += value
			}
		}
	}
	if found.Connections > http {
		found.Tunnels = found.Connections - http
	}
	return found
}

func ownListener(prefix string) bool {
	if slices.Contains(ownListeners, prefix) {
		return true
	}
	return slices.ContainsFunc(ownPorts,
		func(port string) bool { return strings.HasSuffix(prefix, port) })
}

func cutLast(s, separator string) (before, after string, found bool) {
	if i := strings.LastIndex(s, separator); i >= 0 {
		return s[:i], s[i+len(separator):], true
	}
	return s, "", false
}
