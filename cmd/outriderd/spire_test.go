package main_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/watch"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/scripts/rig"
)

// serveLikeSPIRE serves certificate files over SDS at a socket, as a SPIRE agent does with its
// SVIDs and bundle under the names default and ROOTCA.
func (i *identified) serveLikeSPIRE(socket string) {
	i.t.Helper()
	secrets := identity.New(identity.Options{
		Board: condition.NewBoard(),
		Settings: identity.Settings{Files: identity.Files{
			Cert: i.path("cert.pem"), Key: i.path("key.pem"), Root: i.path("root.pem"),
		}},
		Watch: func() identity.Watcher {
			return watch.New(watch.Options{})
		},
	})
	server, err := xds.NewServer(xds.Options{Source: secrets, Subscriber: secrets})
	if err != nil {
		i.t.Fatal(err)
	}
	bound, err := xds.Listen(xds.ListenOptions{Path: socket})
	if err != nil {
		i.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- secrets.Run(ctx) }()
	go func() { ended <- server.Serve(ctx, bound) }()
	i.t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				i.t.Error(err)
			}
		}
	})
}

// TestIdentity_EnvoyGetsItsCertificateFromSPIRE shows what Envoy has from another SDS server.
func TestIdentity_EnvoyGetsItsCertificateFromSPIRE(t *testing.T) {
	t.Parallel()
	i := newIdentified(t)
	socket := filepath.Join(i.Dir, "spire.sock")
	i.Write("conf.d/60-spire.toml",
		"[identity]\nprovider = \"spire\"\ncert_file = \"\"\nkey_file = \"\"\nroot_ca_file = \"\"\n"+
			"spire_socket = \""+socket+"\"\n")
	i.Start()
	i.InState(api.EpochStarting, time.Minute)
	i.awaitCondition("secret-unavailable", "spire_socket")
	i.serveLikeSPIRE(socket)
	i.awaitPresented(i.issue())
	shown := func() (all map[string]api.Identity) {
		var identities []api.Identity
		i.JSON(&identities, "certs", "--json")
		all = map[string]api.Identity{}
		for _, s := range identities {
			all[s.Name] = s
		}
		return all
	}
	rig.Eventually(t, time.Minute, "both secrets are shown", func() bool {
		all := shown()
		return all["default"].Source == "spire" && all["ROOTCA"].Source == "spire" &&
			all["default"].SPIFFEID == "spiffe://cluster.local/ns/default/sa/web"
	})
	before := shown()["default"].Serial
	i.awaitPresented(i.issue())
	rig.Eventually(t, time.Minute, "the renewed certificate is shown", func() bool {
		return shown()["default"].Serial != before
	})
}
