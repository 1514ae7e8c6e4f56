package translate

import (
	"testing"

	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
)

// TestLoggers_FailuresAreLast: an EnvoyFilter may patch the access log of a file by its index, so
// the logger of failures must follow it.
func TestLoggers_FailuresAreLast(t *testing.T) {
	logs := observed(AccessLog{File: "/dev/stdout", FailureLogCluster: "xds-grpc"}).loggers(ofRequests)
	if len(logs) != 2 || logs[0].GetFilter() != nil ||
		len(logs[1].GetFilter().GetResponseFlagFilter().GetFlags()) == 0 {
		t.Error(logs)
	}
	for _, log := range logs {
		if err := log.ValidateAll(); err != nil {
			t.Error(err)
		}
	}
	if logs := observed(AccessLog{File: "/dev/stdout"}).loggers(ofRequests); len(logs) != 1 {
		t.Errorf("without failures: %v", logs)
	}
}

// observed returns the telemetry of a mesh without objects.
func observed(log AccessLog) *Telemetry {
	m := mesh.Default()
	m.AccessLog = log
	t := Telemetries(model.NewMesh("cluster.local", m), model.Node{Type: model.Sidecar},
		model.ClientMode)
	return &t
}

// TestBlackHole_ReportsNoFailures: connections to a closed port would make the agent check backends
// if they were reported as failures.
func TestBlackHole_ReportsNoFailures(t *testing.T) {
	of := observed(AccessLog{File: "/dev/stdout", FailureLogCluster: "xds-grpc"})
	chain, err := blackHole(of, "0.0.0.0_80", 80)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &tcpproxyv3.TcpProxy{}
	if err := chain.GetFilters()[0].GetTypedConfig().UnmarshalTo(proxy); err != nil {
		t.Fatal(err)
	}
	if logs := proxy.GetAccessLog(); len(logs) != 1 || logs[0].GetFilter() != nil {
		t.Errorf("access logs %v, want that of the file", logs)
	}
}
