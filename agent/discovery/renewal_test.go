package discovery_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/watch"
	"outrider.org/outrider/scripts/parts"
)

// authority is a CA that issues certificates.
type authority struct{ tls.Certificate }

func newAuthority(t *testing.T) authority {
	t.Helper()
	signer, err := tls.LoadX509KeyPair(certificate(t))
	if err != nil {
		t.Fatal(err)
	}
	return authority{signer}
}

// issue returns a certificate and its key as PEM.
func (a authority) issue(t *testing.T, serial int64, name string) (certificate, key []byte) {
	t.Helper()
	both := filepath.Join(t.TempDir(), "both.pem")
	issue(t, a.Leaf, a.PrivateKey.(*ecdsa.PrivateKey), serial, name, both)
	content, err := os.ReadFile(both)
	if err != nil {
		t.Fatal(err)
	}
	first, rest := pem.Decode(content)
	return pem.EncodeToMemory(first), rest
}

// startWatching runs a server that watches mesh files and certificates, as in the agent.
func startWatching(t *testing.T, folder string, options discovery.Options) *discovery.Server {
	t.Helper()
	watcher := watch.New(watch.Options{Suffixes: []string{".yaml"},
		Delays: watch.Delays{Debounce: time.Millisecond, MaxDelay: time.Millisecond}})
	must(t, watcher.SetPaths([]string{folder + "/..."}))
	ctx, cancel := context.WithCancel(context.Background())
	watched := make(chan error, 1)
	go func() { watched <- watcher.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-watched; err != nil {
			t.Error(err)
		}
	})
	options.Files, options.FilesAreLocal, options.ChangedPaths = []string{folder}, true, watcher.Changes()
	server, _ := start(t, options)
	return server
}

// habits are common ways of renewing certificates. Each writes a pair to cert.pem and key.pem in a
// directory, which does not exist at first.
var habits = []struct {
	name  string
	write func(t *testing.T, folder string, certificate, key []byte)
}{
	{"in place", func(t *testing.T, folder string, certificate, key []byte) {
		writePair(t, folder, certificate, key)
	}},
	{"rename over", func(t *testing.T, folder string, certificate, key []byte) {
		next := filepath.Join(folder, "next")
		writePair(t, next, certificate, key)
		for _, name := range []string{"cert.pem", "key.pem"} {
			must(t, os.Rename(filepath.Join(next, name), filepath.Join(folder, name)))
		}
	}},
	// certbot renews in this way
	{"links made anew", func(t *testing.T, folder string, certificate, key []byte) {
		must(t, os.MkdirAll(folder, 0o700))
		archive, err := os.MkdirTemp(t.TempDir(), "archive")
		must(t, err)
		writePair(t, archive, certificate, key)
		for _, name := range []string{"cert.pem", "key.pem"} {
			if err := os.Remove(filepath.Join(folder, name)); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			must(t, os.Symlink(filepath.Join(archive, name), filepath.Join(folder, name)))
		}
	}},
	{"folder's link made anew", func(t *testing.T, folder string, certificate, key []byte) {
		archive, err := os.MkdirTemp(t.TempDir(), "archive")
		must(t, err)
		writePair(t, archive, certificate, key)
		must(t, os.RemoveAll(folder))
		must(t, os.Symlink(archive, folder))
	}},
	{"folder made anew", func(t *testing.T, folder string, certificate, key []byte) {
		must(t, os.RemoveAll(folder))
		writePair(t, folder, certificate, key)
	}},
}

func writePair(t *testing.T, folder string, certificate, key []byte) {
	t.Helper()
	must(t, os.MkdirAll(folder, 0o700))
	must(t, os.WriteFile(filepath.Join(folder, "cert.pem"), certificate, 0o600))
	must(t, os.WriteFile(filepath.Join(folder, "key.pem"), key, 0o600))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// noProblems waits until the server has no problems.
func noProblems(t *testing.T, server *discovery.Server) {
	t.Helper()
	eventually(t, "nothing is wrong", func() (bool, string) {
		problems := server.Problems()
		return len(problems) == 0, fmt.Sprint(problems)
	})
}

// TestCertificates_RenewalInEachWay configures certificates that do not exist yet, then creates
// them and renews them twice, in each of the common ways. No listener is replaced, no request is
// lost, and no outdated problem remains.
func TestCertificates_RenewalInEachWay(t *testing.T) {
	a := newAuthority(t)
	mesh := t.TempDir()
	ports := freePorts(t, len(habits))
	doors, folders := make([]door, len(habits)), make([]string, len(habits))
	for i := range habits {
		folders[i] = filepath.Join(t.TempDir(), "live")
		doors[i] = door{host: fmt.Sprintf("door-%d.test", i), port: ports[i]}
		write(t, filepath.Join(mesh, fmt.Sprintf("door-%d.yaml", i)), fmt.Sprintf(doorGateway,
			fmt.Sprintf("door-%d", i), ports[i], folders[i]))
	}
	server := startWatching(t, mesh, discovery.Options{Namespace: "shop",
		Settings: discovery.Settings{DebounceAfter: 20 * time.Millisecond,
			DebounceMax: time.Second}})
	e := startEnvoy(t, "router", server)
	for _, folder := range folders {
		eventually(t, "what Envoy misses is reported", func() (bool, string) {
			problems := server.Problems()
			return slices.ContainsFunc(problems, func(p discovery.Problem) bool {
				return strings.HasPrefix(p.Message, folder+"/key.pem does not exist")
			}), fmt.Sprint(problems)
		})
	}
	renew := func(serial int64) {
		for i, habit := range habits {
			certificate, key := a.issue(t, serial, fmt.Sprintf("door-%d", i))
			habit.write(t, folders[i], certificate, key)
		}
		for _, d := range doors {
			d.serves(t, serial)
		}
		noProblems(t, server)
	}
	renew(10)
	stop := keepAsking(t, doors)
	renew(11)
	renew(12)
	stop()
	if n := e.Stat("listener_manager.listener_modified"); n != 0 {
		t.Errorf("%d listeners were made anew", n)
	}
}

// TestCertificates_MismatchedPairIsNotServed writes a new certificate while the key is still the
// old one, and changes the listener. The old pair is served until the new one is complete; then the
// changed listener takes effect, too.
func TestCertificates_MismatchedPairIsNotServed(t *testing.T) {
	a := newAuthority(t)
	mesh, folder := t.TempDir(), t.TempDir()
	d := door{host: "door.test", port: parts.FreePort(t)}
	write(t, filepath.Join(mesh, "door.yaml"), fmt.Sprintf(doorGateway, "door", d.port, folder))
	certificate, key := a.issue(t, 10, "door")
	writePair(t, folder, certificate, key)
	server := startWatching(t, mesh, discovery.Options{Namespace: "shop"})
	startEnvoy(t, "router", server)
	d.serves(t, 10)
	keepAsking(t, []door{d})

	certificate, newKey := a.issue(t, 11, "door")
	writePair(t, folder, certificate, key)
	eventually(t, "the half is reported", func() (bool, string) {
		problems := server.Problems()
		return len(problems) == 1 && strings.Contains(problems[0].Message, folder),
			fmt.Sprint(problems)
	})
	changed := strings.Replace(doorGateway, "mode: SIMPLE",
		"mode: SIMPLE, minProtocolVersion: TLSV1_3", 1)
	write(t, filepath.Join(mesh, "door.yaml"), fmt.Sprintf(changed, "door", d.port, folder))
	eventually(t, "the listener cannot be changed", func() (bool, string) {
		problems := server.Problems()
		return len(problems) == 2, fmt.Sprint(problems)
	})
	d.serves(t, 10)
	writePair(t, folder, certificate, newKey)
	d.serves(t, 11)
	noProblems(t, server)
}

const trustingRule = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: far}
spec:
  hosts: [far.test]
  resolution: STATIC
  ports: [{number: %[1]d, name: p, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {p: %[2]d}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: far}
spec:
  host: far.test
  trafficPolicy:
    connectionPool: {http: {maxRequestsPerConnection: 1}}
    tls: {mode: MUTUAL, clientCertificate: %[3]s/cert.pem, privateKey: %[3]s/key.pem, caCertificates: %[4]s}
`

// TestCertificates_ClientCertificateRenewal overwrites the files of a DestinationRule's client
// certificate and CA certificates. New connections use the new files, without a reload.
func TestCertificates_ClientCertificateRenewal(t *testing.T) {
	a := newAuthority(t)
	mesh, folder, port := t.TempDir(), t.TempDir(), parts.FreePort(t)
	roots := filepath.Join(folder, "roots.pem")
	serving, servingKey := certificate(t)
	trusted, err := os.ReadFile(serving)
	must(t, err)
	client, key := a.issue(t, 10, "first")
	writePair(t, folder, client, key)
	write(t, roots, string(trusted))
	far := (&backend{name: "far"}).serveTLS(t, serving, servingKey)
	write(t, filepath.Join(mesh, "far.yaml"), fmt.Sprintf(trustingRule, port, far, folder, roots))
	server := startWatching(t, mesh, discovery.Options{Namespace: "shop"})
	startEnvoy(t, "sidecar", server)
	sees := func(want string) {
		t.Helper()
		eventually(t, want, func() (bool, string) {
			ask := &exchange{ask: []string{"GET far.test/"}, expect: []string{want}, times: 1}
			differences := ask.run(port)
			return len(differences) == 0, strings.Join(differences, "; ")
		})
	}
	sees("saw x-tls-client: first")
	client, key = a.issue(t, 11, "second")
	writePair(t, folder, client, key)
	sees("saw x-tls-client: second")
	other, _ := certificate(t)
	untrusted, err := os.ReadFile(other)
	must(t, err)
	write(t, roots, string(untrusted))
	sees("status 503")
	write(t, roots, string(trusted))
	sees("saw x-tls-client: second")
	noProblems(t, server)
}
