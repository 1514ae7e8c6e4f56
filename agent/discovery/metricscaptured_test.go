package discovery_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// capturedService is a service outside the mesh, with an address of its own.
const capturedService = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: far, namespace: shop}
spec:
  hosts: [far.test]
  addresses: [10.9.0.7]
  resolution: STATIC
  ports: [{number: 7501, name: http, protocol: HTTP, targetPort: %d}]
  endpoints: [{address: 127.0.0.1, labels: {app: far}}]
`

// TestMetrics_OfCapturedConnections sends a captured request to a service, and one to a port of
// this machine that is in no service. Both must be counted with Istio's labels.
func TestMetrics_OfCapturedConnections(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	redirect(t)
	proxy := startPeer(t, "REDIRECT", "outrider", "defaultProviders: {metrics: [prometheus]}\n"+
		"outboundTrafficPolicy: {mode: REGISTRY_ONLY}", newMeshPKI(t))
	const marker = "10.9.1.1"
	proxy.apply(t, fmt.Sprintf(capturedService, (&backend{name: "far"}).serve(t, false))+
		strings.Replace(fmt.Sprintf(stepService, 7490, echoTCP(t, "step")), "resolution",
			"addresses: ["+marker+"], resolution", 1), marker+":7490")
	listener, err := net.Listen("tcp", capturedAddress+":7305")
	must(t, err)
	run(t, &http.Server{Handler: &backend{name: "here"}}, listener)
	before := proxy.istioMetrics(t)
	for _, host := range []string{"10.9.0.7:7501", capturedAddress + ":7305"} {
		request, err := http.NewRequestWithContext(context.Background(), http.MethodGet,
			"http://"+host+"/", nil)
		must(t, err)
		if host == "10.9.0.7:7501" {
			request.Host = "far.test:7501"
		}
		response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
		must(t, err)
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", host, response.Status)
		}
	}
	want := map[string]float64{
		"istio_requests_total source destination_app=far destination_canonical_revision=latest " +
			"destination_canonical_service=far destination_principal=unknown " +
			"destination_service=far.test destination_service_name=far.test " +
			"destination_version=unknown destination_workload=unknown " +
			"source_principal=unknown": 1,
		"istio_requests_total destination connection_security_policy=none " +
			"destination_principal=unknown source_principal=unknown " +
			"source_workload_namespace=unknown": 1}
	eventually(t, "the requests are counted", func() (bool, string) {
		got := map[string]float64{}
		for key, value := range proxy.istioMetrics(t) {
			if strings.HasPrefix(key, "istio_requests_total ") && value != before[key] {
				got[key] = value - before[key]
			}
		}
		diff := cmp.Diff(want, got)
		return diff == "", diff
	})
	if len(proxy.nacks.all) > 0 {
		t.Error(proxy.nacks.all)
	}
}
