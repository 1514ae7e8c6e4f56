package envoy

import "strings"

// terminated is Envoy's log message when SIGTERM ends it.
const terminated = "caught ENVOY_SIGTERM"

// Routine recognises the log lines of one Envoy that duplicate Outrider's own: the steps of a hot
// restart, an orderly stop, and refused resources. It also recognises lines that every Envoy logs
// on a current host. The zero value is ready to use.
type Routine struct{ ending bool }

// Is reports whether a line is routine.
func (r *Routine) Is(line LogLine) bool {
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
		return true // the host has cgroup v2, and Envoy looks for v1 first
	}
	return r.ending && strings.Contains(line.Message, " gRPC config stream to ")
}
