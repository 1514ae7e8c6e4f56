package envoy

import "strings"

// terminated is what Envoy says when SIGTERM ends it.
const terminated = "caught ENVOY_SIGTERM"

// Routine recognises the lines of one Envoy that say no more than Outrider logs itself: the steps of a
// hot restart, an orderly end, and resources that were refused. The zero value is ready to use.
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
	if strings.HasPrefix(line.Message, "gRPC config for type.googleapis.com/") {
		return strings.Contains(line.Message, " rejected: ")
	}
	return r.ending && strings.Contains(line.Message, "AggregatedResources gRPC config stream to ")
}
