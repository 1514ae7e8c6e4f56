package envoy

import "testing"

func TestRoutine(t *testing.T) {
	closed := "DeltaAggregatedResources gRPC config stream to xds-grpc closed: 13, reset"
	var r routineLineFilter
	for _, c := range []struct {
		message string
		want    bool
	}{
		{"shutting down admin due to child startup", true},
		{"terminating parent process", true},
		{"gRPC config for type.googleapis.com/envoy.config.listener.v3.Listener rejected: Error adding", true},
		{"gRPC config for type.googleapis.com/envoy.config.listener.v3.Listener accepted", false},
		{"delta config for type.googleapis.com/envoy.config.listener.v3.Listener rejected: Error adding", true},
		{"lds: listener '0.0.0.0_80' config rejected: cannot bind '0.0.0.0:80': Address already in use", true},
		{"lds: listener '0.0.0.0_80' added", false},
		{"listener '0.0.0.0_80' failed to bind or apply socket options: cannot bind '0.0.0.0:80': Address already in use", true},
		{"listener '0.0.0.0_80' failed to bind or apply socket options: setsockopt", false},
		{"[source/server/cgroup_cpu_util.cc:293] Expected cgroup v1 files not accessible at /sys/fs/cgroup/", true},
		{closed, false}, // not routine before SIGTERM: the agent may have died
		{"caught ENVOY_SIGTERM", true},
		{closed, true},
		{"panic: assertion failed", false},
	} {
		if got := r.Matches(logLine{Message: c.message}); got != c.want {
			t.Errorf("%q: %v, want %v", c.message, got, c.want)
		}
	}
}
