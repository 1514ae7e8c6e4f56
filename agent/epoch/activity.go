package epoch

import "strings"

// ActivityFilter is the filter of Envoy's /stats for what ActivityOf reads.
const ActivityFilter = `^(http\..*\.downstream_(cx|rq)_active|listener\..*\.downstream_cx_active)$`

// Activity is what an Envoy has open toward its clients, its admin interface apart.
type Activity struct {
	Connections uint64 // all of them
	Requests    uint64 // in flight; an upgraded connection (WebSocket, CONNECT) is one
	Tunnels     uint64 // connections that are not HTTP
}

// Idle is whether nothing would be lost by ending Envoy now, but for idle keep-alive connections, whose clients retry.
func (a Activity) Idle() bool { return a.Requests == 0 && a.Tunnels == 0 }

// ActivityOf counts from Envoy's gauges. Per-worker gauges of a listener repeat the listener's and are left out, and so is
// the admin interface, which counts the connection that asks.
func ActivityOf(stats map[string]uint64) Activity {
	var a Activity
	var http uint64
	for name, value := range stats {
		kind, rest, _ := strings.Cut(name, ".")
		if strings.HasPrefix(rest, "admin.") {
			continue
		}
		switch {
		case kind == "listener" && strings.HasSuffix(rest, ".downstream_cx_active"):
			if !strings.Contains(rest, ".worker_") && !strings.Contains(rest, ".main_thread.") {
				a.Connections += value
			}
		case kind == "http" && strings.HasSuffix(rest, ".downstream_cx_active"):
			http += value
		case kind == "http" && strings.HasSuffix(rest, ".downstream_rq_active"):
			a.Requests += value
		}
	}
	if a.Connections > http {
		a.Tunnels = a.Connections - http
	}
	return a
}
