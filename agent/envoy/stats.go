package envoy

import (
	"context"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Stats returns the counters and gauges whose name matches the regular expression ("" = all).
// Histograms and texts are left out.
func (a *Admin) Stats(ctx context.Context, filter string) (map[string]uint64, error) {
	return a.stats(ctx, "", filter)
}

// Gauges returns the gauges alone: of a hundred services' twelve thousand statistics Envoy looks at
// a fifth.
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

// Activity is what an epoch has in hand. The admin interface and Outrider's own listeners are left
// out.
type Activity struct {
	Connections uint64 // from clients
	Requests    uint64 // HTTP requests in flight, upgraded connections (WebSocket) included
	// connections that are not HTTP: nothing but their end tells that they are done
	Tunnels uint64
}

// Names of the statistics of Outrider's own listeners: the bootstrap gives them these, and Activity
// leaves them out.
const (
	PrometheusStatPrefix = "outrider_prometheus" // the listener of Envoy's metrics (15090)
	ReadyStatPrefix      = "outrider_ready"      // the listener of readiness (15021)
)

const activityFilter = `^(listener\..+\.downstream_cx_active|http\..+\.downstream_(cx|rq)_active)$`

var (
	// threadStat are the parts of a listener's figure by thread.
	threadStat = regexp.MustCompile(`\.(worker_\d+|main_thread)\.downstream_cx_active$`)

	// ownHTTP and ownListeners are the prefixes of what is not the user's traffic: ours, and
	// Istio's names for the same two listeners, which bootstrap templates and istiod bring along.
	ownHTTP      = []string{"admin", PrometheusStatPrefix, ReadyStatPrefix, "stats", "agent"}
	ownListeners = []string{"admin", PrometheusStatPrefix, ReadyStatPrefix}
	ownPorts     = []string{"_15021", "_15090"}
)

// Activity reads what the epoch has in hand. All zero means that ending it loses nothing. An Envoy
// whose stats matcher leaves out the statistics named downstream_cx_active and downstream_rq_active
// looks idle.
func (a *Admin) Activity(ctx context.Context) (Activity, error) {
	stats, err := a.Stats(ctx, activityFilter)
	if err != nil {
		return Activity{}, err
	}
	return activity(stats), nil
}

func activity(stats map[string]uint64) Activity {
	var found Activity
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
	return slices.ContainsFunc(ownPorts, func(port string) bool { return strings.HasSuffix(prefix, port) })
}

func cutLast(s, separator string) (before, after string, found bool) {
	if i := strings.LastIndex(s, separator); i >= 0 {
		return s[:i], s[i+len(separator):], true
	}
	return s, "", false
}
