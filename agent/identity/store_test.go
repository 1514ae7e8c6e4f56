package identity_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
)

func issuePair(t *testing.T, root *pkitest.Authority, lifetime time.Duration) *pki.Pair {
	t.Helper()
	chain, key := root.Issue(t, pkitest.LeafTemplate("web", lifetime))
	pair, err := pki.ParsePair(pki.PEMInput{PEM: chain}, pki.PEMInput{PEM: key}, pki.UsageBoth)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A reader that resolves the link ..data once, and then reads the files, never gets a certificate
// with the key of another one.
func TestOutput_IsReplacedAsASet(t *testing.T) {
	root := pkitest.NewAuthority(t, "root", nil)
	dir := t.TempDir()
	output := &identity.OutputFiles{Dir: dir}
	// written by another program; the output replaces the file by a link
	other := filepath.Join(dir, "key.pem")
	if err := os.WriteFile(other, []byte("key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "..set-killed"), 0o700); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan int)
	go func() {
		reads := 0
		defer func() { stopped <- reads }()
		for {
			set, err := filepath.EvalSymlinks(filepath.Join(dir, "..data"))
			if err == nil {
				chain, err1 := os.ReadFile(filepath.Join(set, "cert-chain.pem"))
				key, err2 := os.ReadFile(filepath.Join(set, "key.pem"))
				if err1 == nil && err2 == nil { // otherwise the set has been removed meanwhile
					reads++
					_, err := pki.ParsePair(pki.PEMInput{PEM: chain}, pki.PEMInput{PEM: key},
						pki.UsageBoth)
					if err != nil {
						t.Error(err)
					}
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	var pair *pki.Pair
	for range 50 {
		pair = issuePair(t, root, time.Hour)
		if err := output.Write(pair, roots(root)); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	if reads := <-stopped; reads == 0 {
		t.Error("the reader has seen no set")
	}
	for name, want := range map[string][]byte{
		"cert-chain.pem": pair.ChainPEM, "key.pem": pair.KeyPEM,
		"root-cert.pem": pkitest.PEM(root.Certificate),
	} {
		if got := read(t, filepath.Join(dir, name)); !bytes.Equal(got, want) {
			t.Errorf("%s: %.40s", name, got)
		}
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
	}
	set := read(t, filepath.Join(dir, "..data", "key.pem"))
	before, _ := os.Readlink(filepath.Join(dir, "..data"))
	if err := output.Write(pair, roots(root)); err != nil {
		t.Fatal(err)
	}
	after, _ := os.Readlink(filepath.Join(dir, "..data"))
	if before != after || !bytes.Equal(set, pair.KeyPEM) {
		t.Error("an unchanged set is written again")
	}
	left, err := filepath.Glob(filepath.Join(dir, "..set-*"))
	if err != nil || len(left) != 1 {
		t.Errorf("%d sets are left", len(left))
	}
}

func TestOutput_GroupOfSharedFolderMayRead(t *testing.T) {
	root, dir := pkitest.NewAuthority(t, "root", nil), filepath.Join(t.TempDir(), "new")
	output := &identity.OutputFiles{Dir: dir}
	if err := output.Write(issuePair(t, root, time.Hour), roots(root)); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("a new folder: %v, %v", info.Mode(), err)
	}
	if err := os.Chmod(dir, 0o750|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	if err := output.Write(issuePair(t, root, time.Hour), roots(root)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"key.pem": 0o640, "..data": 0o750} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}

func TestOutput_FailureIsReported(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig, options *identity.Options) {
		r.issue(time.Hour)
		if err := os.WriteFile(r.path("file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		options.Settings.OutputDir = r.path("file/certificates")
	})
	r.awaitCondition(identity.CodeNotStored, "cannot write the certificate to "+r.path("file"))
}

func TestOutput_NeverReplacesItsSource(t *testing.T) {
	t.Parallel()
	var chain []byte
	r := newRig(t, func(r *rig, options *identity.Options) {
		chain = r.issue(time.Hour)
		options.Settings.OutputDir = r.dir
	})
	r.awaitChain(identity.DefaultSecret, chain)
	if left, err := filepath.Glob(r.path("*key.pem*")); err != nil || len(left) != 1 {
		t.Errorf("files: %v", left)
	}
}

func TestSealed_SurvivesAReboot(t *testing.T) {
	root := pkitest.NewAuthority(t, "root", nil)
	path := filepath.Join(t.TempDir(), "sealed")
	const id = "spiffe://cluster.local/ns/default/sa/web"
	sealed := func(id, credential string) *identity.SealedStore {
		s, err := identity.NewSealedStore(path, id, []byte(credential))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	mine := sealed(id, strings.Repeat("a", 32))
	if last, err := mine.Load(); last != nil || err != nil {
		t.Errorf("nothing kept yet: %v, %v", last, err)
	}
	issued := &identity.IssuedCertificate{
		Pair: issuePair(t, root, time.Hour), Roots: roots(root), Obtained: time.Now(),
	}
	if err := mine.Save(issued); err != nil {
		t.Fatal(err)
	}
	last, err := mine.Load()
	if err != nil || !bytes.Equal(last.Pair.KeyPEM, issued.Pair.KeyPEM) || len(last.Roots) != 1 ||
		!last.Obtained.Equal(issued.Obtained) {
		t.Fatalf("kept: %+v, %v", last, err)
	}
	if text := read(t, path); bytes.Contains(text, []byte("PRIVATE")) ||
		bytes.Contains(text, issued.Pair.Leaf().RawSubjectPublicKeyInfo) {
		t.Error("the file is readable")
	}
	// outrider-seal appends an old key that it has recovered to the new key.
	both := sealed(id, strings.Repeat("c", 32)+strings.Repeat("a", 32))
	if last, err := both.Load(); last == nil || err != nil {
		t.Errorf("with the second key of a credential: %v, %v", last, err)
	}
	for name, c := range map[string]struct {
		store *identity.SealedStore
	}{
		"another credential": {sealed(id, strings.Repeat("b", 32))},
		"another identity":   {sealed(id+"x", strings.Repeat("a", 32))},
	} {
		if last, err := c.store.Load(); last != nil || err == nil {
			t.Errorf("%s: %v, %v", name, last, err)
		}
	}
	if err := os.WriteFile(path, read(t, path)[:20], 0o600); err != nil {
		t.Fatal(err)
	}
	if last, err := mine.Load(); last != nil || err == nil {
		t.Errorf("damaged: %v, %v", last, err)
	}
	if _, err := identity.NewSealedStore(path, id, []byte("short")); err == nil {
		t.Error("a short credential is accepted")
	}
}

func TestSealed_IsRemovedWhenItIsNotWanted(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig, _ *identity.Options) { r.issue(time.Hour) })
	r.write("sealed", nil)
	r.Configure(identity.Settings{StaleStoreFile: r.path("sealed")}) // needs no provider
	parts.Eventually(t, deadline, "it is removed", func() bool {
		_, err := os.Stat(r.path("sealed"))
		return errors.Is(err, fs.ErrNotExist)
	})
	r.Configure(identity.Settings{StaleStoreFile: r.dir}) // not removable: it has files
	r.awaitCondition(identity.CodeNotStored, "cannot remove the stored certificate")
}
