package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	securityv1 "istio.io/api/security/v1alpha1"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts/signer"
)

// TestCA_RateBesideIstiod compares the CPU time that this program and istiod need to issue a
// certificate. Each uses one core; all keys are P-256. It runs with OUTRIDER_TEST_FULL=1 only.
func TestCA_RateBesideIstiod(t *testing.T) {
	if os.Getenv("OUTRIDER_TEST_FULL") == "" {
		return
	}
	t.Setenv("GOMAXPROCS", "1")
	root := pkitest.NewAuthority(t, "root", nil)
	s := startSigning(t, root, root)
	tokens, err := rsa.GenerateKey(rand.Reader, 2048) // istiod's tokens have RSA keys of this size
	if err != nil {
		t.Fatal(err)
	}
	// The program caches a key file only if the file is some seconds old: the start of istiod takes
	// longer.
	s.verifyTokens(tokens)
	istiod := signer.Start(t, root)
	roots := x509.NewCertPool()
	roots.AddCert(root.Certificate)
	var ours, theirs time.Duration
	const rounds = 4
	// measure both in turn, because the load of the machine changes over time
	for i := range rounds {
		theirs += issueMany(t, istiod.Address, istiod.Token(t, time.Hour), "web", roots, istiod.PID())
		account := fmt.Sprintf("web-%d", i) // an identity may send a burst of 1,000 requests
		ours += issueMany(t, s.address, s.token(tokens, map[string]any{
			"sub": "system:serviceaccount:default:" + account}), account, s.roots, s.pid)
	}
	t.Logf("processor time of a certificate: %v, istiod %v", ours/rounds, theirs/rounds)
	if ours > theirs*11/10 { // tolerates the noise of a busy machine
		t.Errorf("a certificate costs %v, more than istiod's %v", ours/rounds, theirs/rounds)
	}
}

// issueMany requests certificates for a service account over one connection, and returns the CPU
// time that the server uses for one certificate.
func issueMany(t *testing.T, address, token, account string, roots *x509.CertPool,
	pid int) time.Duration {
	t.Helper()
	const number, concurrent = 900, 4
	connection, err := grpc.NewClient("dns:///"+address, grpc.WithTransportCredentials(
		credentials.NewTLS(&tls.Config{RootCAs: roots})))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	client := securityv1.NewIstioCertificateServiceClient(connection)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	in := &securityv1.IstioCertificateRequest{Csr: csr(t, pkitest.NewKey(t),
		func(r *x509.CertificateRequest) {
			r.URIs = pkitest.LeafTemplate(account,
				time.Hour).URIs
		}),
		ValidityDuration: 3600}
	// opens the connection and fills caches before the measurement
	if _, err := client.CreateCertificate(ctx, in); err != nil {
		t.Fatal(err)
	}
	before, begun := processorTime(t, pid), time.Now()
	var group errgroup.Group
	for range concurrent {
		group.Go(func() error {
			for range number / concurrent {
				if _, err := client.CreateCertificate(ctx, in); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %.0f certificates a second", address, number/time.Since(begun).Seconds())
	return (processorTime(t, pid) - before) / number
}

// processorTime returns the CPU time that all threads of a process have used.
func processorTime(t *testing.T, pid int) (used time.Duration) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("process %d has no statistics: %v", pid, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(text), " ")
		nanoseconds, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		used += time.Duration(nanoseconds)
	}
	return used
}
