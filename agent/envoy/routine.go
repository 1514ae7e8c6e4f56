package envoy

import "strings"

// terminated is the message that Envoy logs when SIGTERM ends it.
const terminated = "caught ENVOY_SIGTERM"

// routineLineFilter recognises log lines of one Envoy that need no attention: those about events
// that Outrider logs itself (the steps of a hot restart, an orderly stop, refused resources), and
// those that every Envoy logs on a current host. The zero value is ready to use.
type routineLineFilter struct{ ending bool }

// Matches reports whether a line is routine. It must see all lines in order.
func (r *routineLineFilter) Matches(line logLine) bool {
	switch line.Message {
	case "shutting down admin due to child startup", "terminating parent process":
		return true
	case terminated:
		r.ending = true
		return true
	}
	for _, start := range []string{
		"gRPC config for type.googleapis.com/", "delta config for type.googleapis.com/",
		"lds: listener '",
	} {
		if strings.HasPrefix(line.Message, start) {
			return strings.Contains(line.Message, " rejected: ")
		}
	}
	if strings.HasPrefix(line.Message, "listener '") &&
		strings.Contains(line.Message, " failed to bind or apply socket options: cannot bind '") {
		return true
	}
	if strings.HasPrefix(line.Message, "[source/server/cgroup_cpu_util.cc:") &&
		strings.Contains(line.Message, "] Expected cgroup v1 files not accessible") {
		return true // logged on each host with cgroup v2, because Envoy tries v1 first
	}
	return r.ending && strings.Contains(line.Message, " gRPC config stream to ")
}
