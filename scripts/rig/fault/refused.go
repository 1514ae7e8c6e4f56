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

// override configures a bootstrap_override with this content for the next epoch.
func (s *Execution) override(content string) {
	s.Helper()
	s.WriteFile("override.json", content)
	s.SetTOML(s.Options.dropIn(s.fault, fmt.Sprintf("bootstrap_override = %q\n",
		filepath.Join(s.Dir, "override.json"))))
}

// stillServes checks that the epoch before a refused reload is live, the proxy is ready, and the
// admin interface responds.
func (s *Execution) stillServes(before api.Epoch) {
	s.Helper()
	if now := s.LiveEpoch(); now.PID != before.PID {
		s.Errorf("another epoch is live: %+v, before %+v", now, before)
	}
	if ready, reason := s.Ready(); !ready {
		s.Errorf("not ready: %s", reason)
	}
	if err := s.CheckAdmin(); err != nil {
		s.Errorf("the refusal cost the admin interface: %v", err)
	}
}

// continues checks the state after a reload whose epoch failed to start. The previous epoch must be
// ready, although it has closed its admin interface for the failed epoch. Then a new epoch with the
// previous configuration must restore the admin interface by a hot restart.
func (s *Execution) continues(before api.Epoch) {
	s.Helper()
	if ready, reason := s.Ready(); !ready {
		s.Errorf("not ready: %s", reason)
	}
	var now api.Epoch
	rig.Eventually(s.TB, time.Minute, "an epoch brings back the admin interface", func() bool {
		now = s.LiveEpoch()
		return now.PID != before.PID && s.CheckAdmin() == nil
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

func unparsableOverride(s *Execution) {
	before := s.LiveEpoch()
	s.override(`{"static_resources": {`)
	s.refused("override.json")
	s.stillServes(before)
}

func unparsableForEnvoy(s *Execution) {
	before := s.LiveEpoch()
	s.WriteFile("custom.json",
		`{"admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}}},
  "no_such_field": 1}`)
	s.SetTOML(s.Options.dropIn(s.fault, fmt.Sprintf("custom_config_file = %q\n",
		filepath.Join(s.Dir, "custom.json"))))
	s.refused("no_such_field")
	s.stillServes(before)
}

// listener returns a bootstrap with a static listener whose only route is to a cluster.
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

func unknownClusterValidated(s *Execution) {
	before := s.LiveEpoch()
	s.override(listener(parts.FreePort(s.TB), "not-there"))
	s.refused("not-there")
	s.stillServes(before)
}

func unknownCluster(s *Execution) {
	before := s.LiveEpoch()
	s.override(listener(parts.FreePort(s.TB), "not-there"))
	s.refused("not-there")
	s.continues(before)
}

func portInUse(s *Execution) {
	before := s.LiveEpoch()
	occupied, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = occupied.Close() }()
	s.override(listener(occupied.Addr().(*net.TCPAddr).Port, "agent"))
	s.refused("")
	s.continues(before)
	before = s.LiveEpoch()
	// At the second reload, initializingFlag is still set by the failed start. That reload waits
	// until the replaced epoch has ended.
	s.refused("")
	s.continues(before)
}

// blackHole returns a port on which connections are accepted but nothing is sent, until the test
// ends.
func (s *Execution) blackHole() int {
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
				// returns when the peer closes the connection
				_, _ = io.Copy(io.Discard, connection)
				_ = connection.Close()
			}()
		}
	}()
	s.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().(*net.TCPAddr).Port
}

// NeverLiveConfig returns a bootstrap_override with which Envoy never becomes live: it waits for
// the endpoints of a cluster, which it requests from the port blackHole.
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

// neverInitialises configures the next epoch so that it never becomes live.
func (s *Execution) neverInitialises() {
	s.Helper()
	s.override(NeverLiveConfig(s.blackHole()))
}

// initialising requests a reload whose epoch never becomes live, and returns that epoch when it
// only waits for its endpoints. outcome receives the result of the reload.
func (s *Execution) initialising() (child api.Epoch, outcome <-chan rig.CommandResult) {
	s.Helper()
	s.neverInitialises()
	answer := make(chan rig.CommandResult, 1)
	go func() { answer <- s.RunOutrider("reload") }()
	child = s.AwaitEpochState(api.EpochStarting, time.Minute)
	// until the new Envoy has initialized everything except the cluster that waits
	time.Sleep(quiet)
	return child, answer
}

func killedWhileInitialising(s *Execution) {
	before := s.LiveEpoch()
	child, outcome := s.initialising()
	s.Signal(child.PID, syscall.SIGKILL)
	if result := <-outcome; result.ExitCode != 1 {
		s.Errorf("reload: exit %d: %s%s", result.ExitCode, result.Stdout, result.Stderr)
	}
	// The live epoch may be another one than before, if a replacement was necessary. Its process
	// must exist.
	if now := s.LiveEpoch(); !rig.ProcessExists(now.PID) {
		s.Errorf("the epoch that is said to be live is gone: %+v, before %+v", now, before)
	}
}

func neverLive(s *Execution) {
	before := s.LiveEpoch()
	s.neverInitialises()
	s.refused("live_timeout")
	s.continues(before)
}
