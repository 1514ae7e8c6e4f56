package envoy

import "testing"

func TestRoutine(t *testing.T) {
	closed := "DeltaAggregatedResources gRPC config stream to xds-grpc closed: 13, reset"
	var r Routine
	for _, c := range []struct {
		message string
		want    bool
	}{
		{"shutting down admin due to child startup", true},
		{"terminating parent process", true},
		{"gRPC config for type.googleapis.com/envoy.config.listener.v3.Listener rejected: Error adding", true},
		{"gRPC config for type.googleapis.com/envoy.config.listener.v3.Listener accepted", false},
		{closed, false}, // the agent may have died
		{"caught ENVOY_SIGTERM", true},
		{closed, true},
		{"panic: assertion failed", false},
	} {
		if got := r.Is(LogLine{Message: c.message}); got != c.want {
			t.Errorf("%q: %v, want %v", c.message, got, c.want)
		}
	}
}
