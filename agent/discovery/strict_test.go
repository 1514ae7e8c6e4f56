package discovery_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// onePort has a Sidecar that listens on one port for an application, and a PeerAuthentication.
const onePort = `apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default}
spec: {ingress: [{port: {number: %d, protocol: HTTP, name: http}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:%d"%s}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default}
spec: {mtls: {mode: %s}}
`

// TestStrict_AcceptsNothingWithoutIdentity changes the mode of mutual TLS of a proxy without a
// certificate: with STRICT it accepts no connection.
func TestStrict_AcceptsNothingWithoutIdentity(t *testing.T) {
	a, port := (&backend{name: "a"}).serve(t, false), parts.FreePort(t)
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, file, fmt.Sprintf(onePort, port, a, "", "PERMISSIVE"))
	server, changes := start(t, discovery.Options{Files: []string{file}, Namespace: "shop"})
	startEnvoy(t, "sidecar", server)
	for _, step := range []struct{ mode, want, problem string }{
		{"PERMISSIVE", "200", ""},
		{"STRICT", "refused", "accepts no connections: STRICT needs a certificate of the mesh"},
		{"DISABLE", "200", ""},
		{"STRICT", "refused", "accepts no connections: STRICT needs a certificate of the mesh"},
	} {
		write(t, file, fmt.Sprintf(onePort, port, a, "", step.mode))
		changes <- []string{file}
		eventually(t, step.mode+": "+step.want, func() (bool, string) {
			got := peerClient{plain: true}.ask(fmt.Sprintf("127.0.0.1:%d", port))
			return got == step.want, got
		})
		problems := server.Problems()
		if len(problems) > 0 != (step.problem != "") || len(problems) > 0 &&
			(problems[0].Severity != condition.Error ||
				!strings.Contains(problems[0].Message, step.problem)) {
			t.Errorf("%s: problems %v", step.mode, problems)
		}
	}
}

// TestStrict_AcceptsNothingWithoutIdentityWhenCaptured opens captured connections to a port of a
// service, and to one that is in no service. With STRICT, a proxy without a certificate accepts
// none.
func TestStrict_AcceptsNothingWithoutIdentityWhenCaptured(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	redirect(t)
	ports := []int{peerHTTP, peerOther}
	for _, port := range ports {
		listener, err := net.Listen("tcp", net.JoinHostPort(capturedAddress, fmt.Sprint(port)))
		must(t, err)
		run(t, &http.Server{Handler: &backend{name: "here"}}, listener)
	}
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, file, peerService)
	server, changes := start(t, discovery.Options{Files: []string{file}, Namespace: "shop"})
	startEnvoy(t, "REDIRECT", server)
	for mode, want := range map[string]string{"UNSET": "200", "STRICT": "refused"} {
		write(t, file, peerService+peerStep{objects: []string{"shop all " + mode}}.yaml())
		changes <- []string{file}
		for _, port := range ports {
			eventually(t, fmt.Sprintf("%s: port %d: %s", mode, port, want), func() (bool, string) {
				got := peerClient{plain: true}.ask(fmt.Sprintf("%s:%d", capturedAddress, port))
				return got == want, got
			})
		}
	}
}

// TestStrict_AcceptsNothingBeforeTheFirstCertificate starts a proxy whose SDS server has no
// certificate yet. Its STRICT port accepts no connection before the certificate arrives.
func TestStrict_AcceptsNothingBeforeTheFirstCertificate(t *testing.T) {
	a, port := (&backend{name: "a"}).serve(t, false), parts.FreePort(t)
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, file, fmt.Sprintf(onePort, port, a, "", "STRICT"))
	server, _ := start(t, discovery.Options{Files: []string{file}, Namespace: "shop"})
	pki := newMeshPKI(t)
	secrets, ready := pki.secrets(t, vmID), make(chan struct{})
	secrets.ready = ready
	e := startEnvoyWith(t, "sidecar", server, withIdentity(t, secrets))
	address := fmt.Sprintf("127.0.0.1:%d", port)
	plain := peerClient{plain: true}
	eventually(t, "Envoy has the listener", func() (bool, string) {
		n := e.Stat("listener_manager.listener_added")
		return n == 1, fmt.Sprint(n)
	})
	for range 20 {
		if got := plain.ask(address); got != "refused" {
			t.Fatalf("plain text before the certificate: %s", got)
		}
	}
	close(ready)
	client := peerClient{identity: issueID(t, pki.mesh, farID)}
	eventually(t, "clients with an identity are let in", func() (bool, string) {
		got := client.ask(address)
		return got == "200", got
	})
	if got := plain.ask(address); got != "refused" {
		t.Errorf("plain text: %s", got)
	}
}

// TestPeerAuthentication_TakesVersionsAndSuitesOfMeshConfig changes meshMTLS in MeshConfig.
// tlsDefaults must have no effect on mutual TLS in the mesh.
func TestPeerAuthentication_TakesVersionsAndSuitesOfMeshConfig(t *testing.T) {
	a, port := (&backend{name: "a"}).serve(t, false), parts.FreePort(t)
	folder := t.TempDir()
	file, config := filepath.Join(folder, "mesh.yaml"), filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, file, fmt.Sprintf(onePort, port, a, "", "STRICT"))
	write(t, config, "")
	server, changes := start(t, discovery.Options{Files: []string{folder}, Namespace: "shop",
		Settings: discovery.Settings{MeshConfigFile: config}})
	pki := newMeshPKI(t)
	startEnvoyWith(t, "sidecar", server, withIdentity(t, pki.secrets(t, vmID)))
	identity := issueID(t, pki.mesh, farID)
	const aes128, aes256 = tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
	for _, step := range []struct {
		config           string
		with128, with256 bool // whether these cipher suites of TLS 1.2 are accepted
	}{
		{"", true, true},
		{"tlsDefaults: {minProtocolVersion: TLSV1_3}", true, true},
		{"meshMTLS: {cipherSuites: [ECDHE-ECDSA-AES256-GCM-SHA384]}", false, true},
		{"meshMTLS: {minProtocolVersion: TLSV1_3}", false, false},
		{"meshMTLS: {minProtocolVersion: TLSV1_2}", true, true},
	} {
		write(t, config, step.config)
		changes <- []string{config}
		for suite, want := range map[uint16]bool{aes128: step.with128, aes256: step.with256} {
			eventually(t, fmt.Sprintf("with %q, %s is accepted: %t", step.config,
				tls.CipherSuiteName(suite), want), func() (bool, string) {
				connection, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), &tls.Config{
					InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12,
					CipherSuites: []uint16{suite}, Certificates: []tls.Certificate{*identity}})
				if err == nil {
					_ = connection.Close()
				}
				return (err == nil) == want, fmt.Sprint(err)
			})
		}
	}
}

// TestMutualTLS_FollowsMeshConfig: clusters use automatic mutual TLS unless MeshConfig disables it
// or the proxy has no identity.
func TestMutualTLS_FollowsMeshConfig(t *testing.T) {
	folder, config := t.TempDir(), filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, filepath.Join(folder, "mesh.yaml"), mutualCase{name: "x",
		endpoint: withAccount}.yaml(80, 8080))
	write(t, config, "")
	server, changes := start(t, discovery.Options{Files: []string{folder},
		Settings: discovery.Settings{MeshConfigFile: config}})
	for _, step := range []struct {
		config, kind string
		want         bool
	}{
		{"", "sidecar identity", true},
		{"", "router identity", true},
		{"", "sidecar", false},
		{"enableAutoMtls: false", "sidecar identity", false},
		{"enableAutoMtls: true", "sidecar identity", true},
	} {
		write(t, config, step.config)
		changes <- []string{config}
		changes <- nil // the server receives this once it has processed the previous change
		snapshot, _ := feedOf(t, server, step.kind).Current()
		var cluster clusterv3.Cluster
		if r := snapshot.Get(resource.Key{Type: resource.ClusterType,
			Name: "outbound|80||x.test"}); r != nil {
			must(t, proto.Unmarshal(r.EncodedMessage(), &cluster))
		}
		if got := len(cluster.TransportSocketMatches) == 2; got != step.want {
			t.Errorf("%q, %s: mutual TLS %t, want %t", step.config, step.kind, got, step.want)
		}
	}
}

// TestPeerAuthentication_EndsTLSOfSidecars: the TLS settings of a Sidecar apply unless a
// PeerAuthentication requires mutual TLS.
func TestPeerAuthentication_EndsTLSOfSidecars(t *testing.T) {
	cert, key := certificate(t)
	folder := t.TempDir()
	file := filepath.Join(folder, "mesh.yaml")
	server, changes := start(t, discovery.Options{Files: []string{folder}, Namespace: "shop"})
	own := fmt.Sprintf(", tls: {mode: SIMPLE, serverCertificate: %s, privateKey: %s}", cert, key)
	for mode, problem := range map[string]string{"UNSET": "", "DISABLE": "",
		"STRICT":     "has no effect: PeerAuthentication shop/default",
		"PERMISSIVE": "has no effect: PeerAuthentication shop/default"} {
		text := strings.Replace(fmt.Sprintf(onePort, 8443, 8080, own, mode), "protocol: HTTP,",
			"protocol: HTTPS,", 1)
		write(t, file, text)
		changes <- []string{file}
		changes <- nil // the server receives this once it has processed the previous change
		feedOf(t, server, "sidecar identity")
		problems := server.Problems()
		if len(problems) > 0 != (problem != "") || len(problems) > 0 &&
			!strings.Contains(problems[0].String(), problem) {
			t.Errorf("%s: problems %v, want %q", mode, problems, problem)
		}
	}
}
