package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/agent/relay"
	"outrider.org/outrider/agent/watch"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/scripts/parts"
)

// While the epoch of one reload starts, the refusal of a later reload does not remove the secrets
// that the starting epoch needs.
func TestHeld_RefusalOfAnotherReloadLeavesSecrets(t *testing.T) {
	board, dir := condition.NewRegistry(), t.TempDir()
	w := &workloadIdentity{log: slog.New(slog.DiscardHandler),
		Manager: identity.New(identity.Options{Conditions: board,
			Watcher: watch.NewNotifier(watch.Delays{}, nil)})}
	h := &heldConfigs{identity: w, upstream: &upstream{xdsSwitch: &xds.ServiceSwitch{},
		identity: w.Manager,
		relay:    relay.New(relay.Options{Conditions: board})}}
	go func() { _ = w.Run(t.Context()) }()
	none, files := &config.Config{}, &config.Config{}
	none.Identity.Provider = "none"
	files.Identity = config.Identity{Provider: "files", CertFile: filepath.Join(dir, "cert"),
		KeyFile: filepath.Join(dir, "key"), RootCAFile: filepath.Join(dir, "root")}
	authority := pkitest.NewAuthority(t, "root", nil)
	chain, key := authority.Issue(t, pkitest.LeafTemplate("web", time.Hour))
	for path, text := range map[string][]byte{files.Identity.CertFile: chain,
		files.Identity.KeyFile: key, files.Identity.RootCAFile: pkitest.PEM(authority.Certificate)} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h.hold(1, none)
	h.hold(2, files)
	parts.Eventually(t, time.Minute, "the secret", func() bool { return w.KeyPair() != nil })
	h.unhold(3, true, none)
	if w.KeyPair() == nil {
		t.Error("the refusal of another reload removes the secret of a starting epoch")
	}
	h.unhold(2, true, none)
	if w.KeyPair() != nil {
		t.Error("the secret of a refused reload is still provided")
	}
	h.hold(4, files)
	h.unhold(4, false, files)
	if len(h.configs) > 0 {
		t.Error("a reload is held though a newer one has succeeded")
	}
}
