package main_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

func shopEntry(address string) string {
	return `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: default}
spec:
  hosts: [shop.test]
  addresses: [` + address + `]
  resolution: STATIC
  ports: [{number: 9080, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1}]
`
}

// resolverAt returns Go's resolver with the agent's DNS proxy, at an address, as its name server.
func resolverAt(address string) *net.Resolver {
	return &net.Resolver{PreferGo: true,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}}
}

// resolves waits until the DNS proxy returns only the wanted address for a host name.
func resolves(t *testing.T, proxy, host, want string) {
	t.Helper()
	rig.Eventually(t, time.Minute, host+" resolves to "+want, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		found, err := resolverAt(proxy).LookupHost(ctx, host)
		return err == nil && slices.Equal(found, []string{want})
	})
}

// The DNS proxy resolves the hosts of ServiceEntries in mesh.d, and follows their changes.
func TestDNS_FollowsTheMeshFiles(t *testing.T) {
	address := fmt.Sprint("127.0.0.1:", parts.FreePort(t))
	r := rig.New(t, rig.Options{Race: true, TOML: fmt.Sprintf("[dns]\nlisten = %q\n", address),
		Mesh: map[string]string{"shop.yaml": shopEntry("240.240.0.1")}})
	r.StartReady()
	resolves(t, address, "shop.test", "240.240.0.1")
	_, srv, err := resolverAt(address).LookupSRV(t.Context(), "http", "tcp", "shop.test")
	if err != nil || len(srv) != 1 || srv[0].Port != 9080 {
		t.Errorf("SRV: %v, %v", srv, err)
	}
	r.WriteFile("mesh.d/shop.yaml", shopEntry("240.240.0.2"))
	resolves(t, address, "shop.test", "240.240.0.2")
	code, text, err := r.GetHostThroughEnvoy("127.0.0.1", r.Ports.Status, "/stats/prometheus")
	if err != nil || code != 200 ||
		!strings.Contains(text, `outrider_dns_queries_total{result="table"}`) {
		t.Errorf("metrics: %d, %v", code, err)
	}
}

// The DNS proxy resolves the hosts of a real istiod's configuration. While istiod is down, a
// restarted agent resolves them from its cache.
func TestDNS_FollowsIstiod(t *testing.T) {
	t.Parallel()
	u := newUpstreamed(t)
	address := fmt.Sprint("127.0.0.1:", parts.FreePort(t))
	u.SetTOML(fmt.Sprintf("[discovery]\naddress = %q\nauth = \"none\"\n[dns]\nlisten = %q\n",
		u.address,
		address))
	entry := func(address string) { u.WriteFile("istio.d/shop.yaml", shopEntry(address)) }
	entry("240.240.0.1")
	daemon := u.StartReady()
	resolves(t, address, "shop.test", "240.240.0.1")
	entry("240.240.0.2") // istiod pushes the change to the agent
	resolves(t, address, "shop.test", "240.240.0.2")
	u.Signal(daemon.Process.Pid, syscall.SIGTERM)
	daemon.Wait(t, time.Minute)
	u.killIstiod()

	u.StartReady()
	resolves(t, address, "shop.test", "240.240.0.2")
	u.startIstiod()
	u.awaitState("connected")
	entry("240.240.0.3")
	resolves(t, address, "shop.test", "240.240.0.3")
}
