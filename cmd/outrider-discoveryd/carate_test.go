package main

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
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

// TestCA_RateBesideIstiod measures certificates with P-256 keys, signed with a P-256 key, by this
// program and by istiod, each with one core. It runs with OUTRIDER_TEST_FULL=1 only.
func TestCA_RateBesideIstiod(t *testing.T) {
	if os.Getenv("OUTRIDER_TEST_FULL") == "" {
		return
	}
	t.Setenv("GOMAXPROCS", "1")
	root := pkitest.NewAuthority(t, "root", nil)
	istiod := signer.Start(t, root)
	s := startSigning(t, root, root)
	roots := x509.NewCertPool()
	roots.AddCert(root.Certificate)
	theirs := issueMany(t, istiod.Address, istiod.Token(t, time.Hour), roots, istiod.PID())
	tokens, err := rsa.GenerateKey(rand.Reader, 2048) // as istiod's
	if err != nil {
		t.Fatal(err)
	}
	s.verifyTokens(tokens)
	ours := issueMany(t, s.address, s.token(tokens, nil), s.roots, s.pid)
	t.Logf("processor time of a certificate: %v, istiod %v", ours, theirs)
	if ours > theirs*5/4 { // measurements on a busy machine differ by a tenth
		t.Errorf("a certificate costs %v, more than istiod's %v", ours, theirs)
	}
}

// issueMany requests certificates over one connection, and returns the processor time that one
// costs the server.
func issueMany(t *testing.T, address, token string, roots *x509.CertPool, pid int) time.Duration {
	t.Helper()
	const number, concurrent = 800, 4
	connection, err := grpc.NewClient("dns:///"+address, grpc.WithTransportCredentials(
		credentials.NewTLS(&tls.Config{RootCAs: roots})))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	client := securityv1.NewIstioCertificateServiceClient(connection)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	in := &securityv1.IstioCertificateRequest{Csr: csr(t, pkitest.NewKey(t), nil),
		ValidityDuration: 3600}
	if _, err := client.CreateCertificate(ctx, in); err != nil { // connects, and fills caches
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

// processorTime returns the processor time that a process has used.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	const user, system, hertz = 11, 12, 100 // fields after the name of the program; clock ticks
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+2:]))
	var ticks int
	for _, field := range []int{user, system} {
		n, err := strconv.Atoi(fields[field])
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / hertz
}
