package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/dns"
	"outrider.org/outrider/scripts/parts"
)

// Before the mesh files have been read, the DNS proxy answers a query for a host of the mesh with
// SERVFAIL, and not that the host does not exist.
func TestPublishNames_WaitsForTheFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shop.yaml")
	if err := os.WriteFile(file, []byte(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop}
spec:
  hosts: [shop.test]
  addresses: [240.240.0.1]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	server, err := discovery.New(discovery.Options{Files: []string{file}})
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprint("127.0.0.1:", parts.FreePort(t))
	proxy := dns.New(dns.Options{Listen: address, Conditions: condition.NewRegistry(),
		Logger: slog.New(slog.DiscardHandler), Settings: config.DNS{Upstream: []string{"192.0.2.1"}}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- proxy.Run(ctx) }()
	<-proxy.Ready()
	state := newReloadState(&config.Loaded{Config: &config.Config{}})
	query := func() string {
		t.Helper()
		client := mdns.Client{Timeout: 5 * time.Second}
		reply, _, err := client.Exchange(new(mdns.Msg).SetQuestion("shop.test.", mdns.TypeA), address)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(mdns.RcodeToString[reply.Rcode], " ", len(reply.Answer))
	}
	publishNames(state, server, proxy)
	if got := query(); got != "SERVFAIL 0" || proxy.Serving() {
		t.Errorf("before the files are read: %s", got)
	}
	go func() { done <- server.Run(ctx) }()
	<-server.Ready()
	publishNames(state, server, proxy)
	if got := query(); got != "NOERROR 1" {
		t.Errorf("after the files are read: %s", got)
	}
	cancel()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
