package fault

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// override sets a bootstrap_override for the next epoch.
func (s *Scene) override(content string) {
	s.Helper()
	s.Write("override.json", content)
	s.SetTOML(s.Options.dropIn(s.fault, fmt.Sprintf("bootstrap_override = %q\n",
		filepath.Join(s.Dir, "override.json"))))
}

// stillServes checks that the previous epoch serves, is ready, and has its admin interface.
func (s *Scene) stillServes(before api.Epoch) {
	s.Helper()
	if now := s.Live(); now.PID != before.PID {
		s.Errorf("another epoch is live: %+v, before %+v", now, before)
	}
	if ready, reason := s.Ready(); !ready {
		s.Errorf("not ready: %s", reason)
	}
	if err := s.AdminAnswers(); err != nil {
		s.Errorf("the refusal cost the admin interface: %v", err)
	}
}

// continues checks that the previous epoch serves and is ready although it closed its admin
// interface for the refused one, and that a new epoch with the same configuration restores the
// interface.
func (s *Scene) continues(before api.Epoch) {
	s.Helper()
	if ready, reason := s.Ready(); !ready {
		s.Errorf("not ready: %s", reason)
	}
	var now api.Epoch
	rig.Eventually(s.TB, time.Minute, "an epoch brings back the admin interface", func() bool {
		now = s.Live()
		return now.PID != before.PID && s.AdminAnswers() == nil
	})
	if !strings.Contains(now.Reason, "brings back the admin interface") ||
		now.Mode != "hot-restart" {
		s.Errorf("epoch %d is live, and is not what brings back the admin interface: %+v",
			now.Number, now)
	}
	if ready, reason := s.Ready(); !ready {
		s.Errorf("not ready: %s", reason)
	}
}

func unparsableOverride(s *Scene) {
	before := s.Live()
	s.override(`{"static_resources": {`)
	s.refused("override.json")
	s.stillServes(before)
}

func unparsableForEnvoy(s *Scene) {
	before := s.Live()
	s.Write("custom.json",
		`{"admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}}},
  "no_such_field": 1}`)
	s.SetTOML(s.Options.dropIn(s.fault, fmt.Sprintf("custom_config_file = %q\n",
		filepath.Join(s.Dir, "custom.json"))))
	s.refused("no_such_field")
	s.stillServes(before)
}

// listener returns a static listener with one route.
func listener(port int, cluster string) string {
	return fmt.Sprintf(`{"static_resources": {"listeners": [{"name": "extra",
  "address": {"socket_address": {"address": "127.0.0.1", "port_value": %d}},
  "filter_chains": [{"filters": [{"name": "envoy.filters.network.http_connection_manager",
   "typed_config": {"@type": "type.googleapis.com/`+
		`envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
    "stat_prefix": "extra",
    "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {
      "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
    "route_config": {"name": "extra", "validate_clusters": true, "virtual_hosts": [{
      "name": "all", "domains": ["*"],
      "routes": [{"match": {"prefix": "/"}, "route": {"cluster": %q}}]}]}}}]}]}]}}`, port, cluster)
}

func unknownClusterValidated(s *Scene) {
	before := s.Live()
	s.override(listener(parts.FreePort(s.TB), "not-there"))
	s.refused("not-there")
	s.stillServes(before)
}

func unknownCluster(s *Scene) {
	before := s.Live()
	s.override(listener(parts.FreePort(s.TB), "not-there"))
	s.refused("not-there")
	s.continues(before)
}

func portInUse(s *Scene) {
	before := s.Live()
	occupied, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = occupied.Close() }()
	s.override(listener(occupied.Addr().(*net.TCPAddr).Port, "agent"))
	s.refused("")
	s.continues(before)
	before = s.Live()
	// Again: the refused start has left the flag set. This reload waits for the end of the replaced
	// epoch.
	s.refused("")
	s.continues(before)
}

// blackHole accepts connections and never answers, until the scene ends.
func (s *Scene) blackHole() int {
	s.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(io.Discard, connection) // until the peer closes
				_ = connection.Close()
			}()
		}
	}()
	s.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().(*net.TCPAddr).Port
}

// NeverLiveConfig returns a bootstrap_override with which Envoy waits forever for the endpoints of
// a cluster from a port that never answers.
func NeverLiveConfig(blackHole int) string {
	return fmt.Sprintf(`{"static_resources": {"clusters": [
  {"name": "black-hole", "type": "STATIC", "connect_timeout": "1s",
   "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
     "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
     "explicit_http_config": {"http2_protocol_options": {}}}},
   "load_assignment": {"cluster_name": "black-hole", "endpoints": [{"lb_endpoints": [{
     "endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": %d}}}}]}]}},
  {"name": "waits", "type": "EDS", "connect_timeout": "1s", "eds_cluster_config": {
   "eds_config": {"resource_api_version": "V3", "initial_fetch_timeout": "0s",
    "api_config_source": {"api_type": "GRPC", "transport_api_version": "V3",
     "grpc_services": [{"envoy_grpc": {"cluster_name": "black-hole"}}]}}}}]}}`,
		blackHole)
}

// neverInitialises configures the next epoch such that it never becomes live.
func (s *Scene) neverInitialises() {
	s.Helper()
	s.override(NeverLiveConfig(s.blackHole()))
}

// initialising starts an epoch that never becomes live, and returns it after the hand-over from the
// previous one.
func (s *Scene) initialising() (child api.Epoch, outcome <-chan rig.Result) {
	s.Helper()
	s.neverInitialises()
	answer := make(chan rig.Result, 1)
	go func() { answer <- s.Outrider("reload") }()
	child = s.AwaitEpochState(api.EpochStarting, time.Minute)
	time.Sleep(quiet) // wait until the new Envoy has initialised everything but that cluster
	return child, answer
}

func killedWhileInitialising(s *Scene) {
	before := s.Live()
	child, outcome := s.initialising()
	s.Signal(child.PID, syscall.SIGKILL)
	if result := <-outcome; result.Exit != 1 {
		s.Errorf("reload: exit %d: %s%s", result.Exit, result.Out, result.Err)
	}
	// The killed epoch may have been live for a moment; then the live epoch is its replacement.
	if now := s.Live(); !rig.ProcessExists(now.PID) {
		s.Errorf("the epoch that is said to be live is gone: %+v, before %+v", now, before)
	}
}

func neverLive(s *Scene) {
	before := s.Live()
	s.neverInitialises()
	s.refused("live_timeout")
	s.continues(before)
}
