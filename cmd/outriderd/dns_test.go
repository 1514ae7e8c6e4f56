package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// The DNS proxy answers for hosts of mesh.d as they are now.
func TestDNS_FollowsTheMeshFiles(t *testing.T) {
	address := fmt.Sprint("127.0.0.1:", parts.FreePort(t))
	entry := func(host, address string) string {
		return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop}
spec:
  hosts: [%s]
  addresses: [%s]
  resolution: STATIC
  ports: [{number: 9080, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1}]
`, host, address)
	}
	r := rig.New(t, rig.Options{Race: true, TOML: fmt.Sprintf("[dns]\nlisten = %q\n", address),
		Mesh: map[string]string{"shop.yaml": entry("shop.test", "240.240.0.1")}})
	r.StartReady()
	client := &net.Resolver{PreferGo: true,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}}
	resolves := func(host, want string) bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		found, err := client.LookupHost(ctx, host)
		return err == nil && slices.Equal(found, []string{want})
	}
	rig.Eventually(t, 10*time.Second, "the name resolves",
		func() bool { return resolves("shop.test", "240.240.0.1") })
	if _, srv, err := client.LookupSRV(t.Context(), "http", "tcp", "shop.test"); err != nil ||
		len(srv) != 1 || srv[0].Port != 9080 {
		t.Errorf("SRV: %v, %v", srv, err)
	}
	r.Write("mesh.d/shop.yaml", entry("shop.test", "240.240.0.2"))
	rig.Eventually(t, 10*time.Second, "the changed name resolves",
		func() bool { return resolves("shop.test", "240.240.0.2") })
	code, text, err := r.GetHost("127.0.0.1", r.Ports.Status, "/stats/prometheus")
	if err != nil || code != 200 || !strings.Contains(text, `outrider_dns_queries_total{result="table"}`) {
		t.Errorf("metrics: %d, %v", code, err)
	}
}
