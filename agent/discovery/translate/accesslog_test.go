package translate

import (
	"testing"

	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"

	"outrider.org/outrider/agent/discovery/mesh"
)

// TestLoggers_FailuresAreLast: an EnvoyFilter may patch the access log of a file by its index, so
// the logger of failures must follow it.
func TestLoggers_FailuresAreLast(t *testing.T) {
	logs, err := loggers(AccessLog{File: "/dev/stdout", Failures: "xds-grpc"}, ofRequests)
	if err != nil || len(logs) != 2 || logs[0].GetFilter() != nil ||
		len(logs[1].GetFilter().GetResponseFlagFilter().GetFlags()) == 0 {
		t.Errorf("%v %v", logs, err)
	}
	for _, log := range logs {
		if err := log.ValidateAll(); err != nil {
			t.Error(err)
		}
	}
	if logs, err := loggers(AccessLog{File: "/dev/stdout"}, ofRequests); err != nil || len(logs) != 1 {
		t.Errorf("without failures: %v %v", logs, err)
	}
}

// TestBlackHole_ReportsNoFailures: outrider-capture checks Envoy by opening connections that the
// virtual listeners close at once. Reported as failures, they would make the agent check backends.
func TestBlackHole_ReportsNoFailures(t *testing.T) {
	m := &mesh.Config{AccessLog: AccessLog{File: "/dev/stdout", Failures: "xds-grpc"}}
	chain, err := blackHole(m, "virtualOutbound-blackhole", 15001)
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
