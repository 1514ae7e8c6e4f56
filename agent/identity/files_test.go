package identity_test

import (
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
)

func TestFiles_ArePublishedAheadOfTheFirstRequest(t *testing.T) {
	t.Parallel()
	var chain []byte
	r := newRig(t, func(r *rig, _ *identity.Options) { chain = r.issue(time.Hour) })
	r.awaitChain(identity.DefaultSecret, chain)
	r.await("roots", func() bool { return r.roots() == pemOf(r.root.Certificate) })
	about := r.Secrets()
	if len(about) != 2 || about[0].Name != identity.RootCASecret ||
		about[1].Name != identity.DefaultSecret {
		t.Fatalf("secrets: %+v", about)
	}
	web := about[1]
	if web.SpiffeID != "spiffe://cluster.local/ns/default/sa/web" || web.Issuer != "O=root" ||
		web.Source != identity.FromFiles || web.Serial == "" {
		t.Errorf("secret: %+v", web)
	}
}

func TestFiles_RotationIsAnEvent(t *testing.T) {
	var chain []byte
	r := newRig(t, func(r *rig, _ *identity.Options) { chain = r.issue(time.Hour) })
	r.awaitChain(identity.DefaultSecret, chain)
	if events := r.board.Events(0); len(events) > 0 {
		t.Errorf("events before any rotation: %v", events)
	}
	r.awaitChain(identity.DefaultSecret, r.issue(2*time.Hour))
	parts.Eventually(t, deadline, "there is an event", func() bool {
		return slices.ContainsFunc(r.board.Events(0), func(e condition.Event) bool {
			return e.Kind == condition.KindSecretRotated &&
				e.Fields["resource"] == identity.DefaultSecret
		})
	})
}

// The last valid certificate and key are served while their files hold something invalid.
func TestFiles_KeepsTheLastGoodPair(t *testing.T) {
	t.Parallel()
	var chain []byte
	r := newRig(t, func(r *rig, _ *identity.Options) { chain = r.issue(time.Hour) })
	r.awaitChain(identity.DefaultSecret, chain)
	later := pkitest.LeafTemplate("web", 48*time.Hour)
	later.NotBefore = time.Now().Add(24 * time.Hour)
	for name, c := range map[string]struct {
		write func()
		text  string
	}{
		"expired":       {func() { r.issue(-time.Minute) }, "expired on"},
		"not yet valid": {func() { r.pair(r.root.Issue(t, later)) }, "is valid from"},
		"other key": {func() {
			_, key := r.root.Issue(t, pkitest.LeafTemplate("other", time.Hour))
			r.write("key.pem", key)
		}, "the private key is not that of the certificate"},
		"removed": {func() { _ = os.Remove(r.path("key.pem")) }, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			c.write()
			r.awaitCondition(identity.CodeNotRenewed, c.text)
			if r.chain(identity.DefaultSecret) != string(chain) {
				t.Error("the last good pair is not served any more")
			}
			chain = r.issue(time.Hour)
			r.awaitChain(identity.DefaultSecret, chain)
			if all := r.board.Conditions(); len(all) > 0 {
				t.Errorf("conditions after the cure: %v", all)
			}
		})
	}
}

func (r *rig) pair(chain, key []byte) {
	r.t.Helper()
	r.write("cert.pem", chain)
	r.write("key.pem", key)
}

func TestFiles_ExpiryIsReported(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig, _ *identity.Options) { r.issue(time.Minute) })
	r.awaitCondition(identity.CodeNotRenewed,
		"the file has not been replaced and expires in less than 2 minutes")
}

func TestNames_LocateFiles(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig, options *identity.Options) {
		r.issue(time.Hour)
		options.Settings.Provider = "none"
	})
	pair := fmt.Sprintf("file-cert:%s~%s", r.path("cert.pem"), r.path("key.pem"))
	root := "file-root:" + r.path("root.pem")
	r.Subscribe([]string{pair, root})
	r.Subscribe([]string{pair})
	r.await("both", func() bool { return r.secret(pair) != nil && r.secret(root) != nil })
	r.awaitChain(pair, r.issue(2*time.Hour))
	r.Unsubscribe([]string{pair, root})
	if r.secret(root) != nil || r.secret(pair) == nil {
		t.Error("only what nobody subscribes to is removed")
	}
	r.Unsubscribe([]string{pair})
	if left := r.Secrets(); r.secret(pair) != nil || len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestNames_NobodyProvides(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(_ *rig, options *identity.Options) {
		options.Settings.Provider = "none"
	})
	for name, text := range map[string]string{
		identity.DefaultSecret:   "no provider has this secret",
		"kubernetes://cart-tls":  "no provider has this secret",
		"file-cert:/a":           "not of the form",
		"file-cert:a~/b":         "not of the form",
		"file-root:root.pem":     "not of the form",
		"file-root:/nonexistent": "no such file",
	} {
		r.Subscribe([]string{name})
		r.awaitCondition(identity.CodeUnavailable, identity.DescribeSecret(name)+": ")
		r.awaitCondition(identity.CodeUnavailable, text)
		r.Unsubscribe([]string{name})
		if all := r.board.Conditions(); len(all) > 0 {
			t.Errorf("%s: conditions without a subscriber: %v", name, all)
		}
	}
}

func TestNames_AreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig, options *identity.Options) {
		r.issue(time.Hour)
		options.Settings.Provider = "none"
	})
	const missing = "file-root:/nonexistent"
	r.Subscribe([]string{missing})
	r.awaitCondition(identity.CodeUnavailable, "no such file")
	var names []string
	for i := range 1000 {
		names = append(names, fmt.Sprint("bad", i))
	}
	last := "file-root:" + r.path("root.pem")
	names = append(names, last)
	r.Subscribe(names)
	for _, about := range r.Secrets() {
		if about.Name == last && !strings.Contains(about.Problem, "more than 1000 secrets") {
			t.Errorf("%+v", about)
		}
	}
	r.awaitCondition(identity.CodeUnavailable, "; and 992 more")
	r.Unsubscribe(names[:1])
	if got := r.secret(last); got != nil {
		t.Error("served without a place")
	}
	r.Unsubscribe([]string{names[1], missing})
	r.await("the secret that waited for a place", func() bool { return r.secret(last) != nil })
	r.Unsubscribe(names[2:])
	if stats := r.Stats(); len(stats.Failures)+len(r.board.Conditions()) > 0 {
		t.Errorf("without subscribers: %+v, %v", stats, r.board.Conditions())
	}
}

func TestFiles_WithoutRootsAreReported(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig, options *identity.Options) {
		r.issue(time.Hour)
		options.Settings.RootCAFile = ""
	})
	r.awaitCondition(identity.CodeUnavailable, "ROOTCA: no root certificates are configured")
}

// If the file system of one secret hangs, other secrets are still served, replaced and added. Here
// Options.EnvoyCannotReadReason blocks in place of the file system.
func TestFiles_AHangingReadDelaysOnlyItsSecret(t *testing.T) {
	t.Parallel()
	var chain []byte
	mount := make(chan struct{})
	t.Cleanup(func() { close(mount) })
	r := newRig(t, func(r *rig, options *identity.Options) {
		chain = r.issue(time.Hour)
		r.write("hangs.pem", nil)
		options.EnvoyCannotReadReason = func(file *os.File) string {
			if file.Name() == r.path("hangs.pem") {
				<-mount
			}
			return ""
		}
	})
	hanging := fmt.Sprintf("file-cert:%s~%s", r.path("hangs.pem"), r.path("key.pem"))
	names := []string{hanging, "file-root:" + r.path("hangs.pem")}
	r.Subscribe(names)
	r.awaitChain(identity.DefaultSecret, chain)
	chain = r.issue(2 * time.Hour)
	r.awaitChain(identity.DefaultSecret, chain)
	other := []string{"file-root:" + r.path("root.pem")}
	r.Subscribe(other)
	r.await("another", func() bool { return r.secret("file-root:"+r.path("root.pem")) != nil })
	r.Unsubscribe(other)
	r.awaitCondition(identity.CodeUnavailable, r.path("hangs.pem")+": reading takes long")
	if len(r.Secrets()) != 4 || r.secret(hanging) != nil {
		t.Errorf("secrets: %v", r.Secrets())
	}
	r.Unsubscribe(names)
}

func TestFiles_PipesAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	if err := syscall.Mkfifo(r.path("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Subscribe([]string{"file-root:" + r.path("pipe")})
	r.awaitCondition(identity.CodeUnavailable, r.path("pipe")+" is no regular file")
}

func TestRoots_MergeAndRotate(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig, _ *identity.Options) { r.issue(time.Hour) })
	next, mesh := pkitest.NewAuthority(t, "next", nil), pkitest.NewAuthority(t, "mesh", nil)
	r.write("root.pem", pkitest.PEM(r.root.Certificate, next.Certificate))
	both := pemOf(r.root.Certificate, next.Certificate)
	r.await("old and new", func() bool { return r.roots() == both })
	r.SetTrustBundle("mesh", []*x509.Certificate{mesh.Certificate, next.Certificate})
	if got := r.roots(); got != both+pemOf(mesh.Certificate) {
		t.Errorf("with the mesh's bundle: %d roots", strings.Count(got, "BEGIN"))
	}
	r.write("root.pem", pkitest.PEM(next.Certificate))
	r.await("new", func() bool { return r.roots() == pemOf(next.Certificate, mesh.Certificate) })
}
