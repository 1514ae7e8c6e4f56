package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pkitest"
	xds "outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

type identityResult struct {
	// Outriderd has the times from exec to the first certificate from files.
	Outriderd  []time.Duration `json:"outriderd_start_ns"`
	PilotAgent []time.Duration `json:"pilot_agent_start_ns"`
	// OutriderdPush has the times from the last rename of root, key and certificate until the
	// certificate is pushed.
	OutriderdPush  []time.Duration `json:"outriderd_push_ns"`
	PilotAgentPush []time.Duration `json:"pilot_agent_push_ns"`
}

// sdsAgent is an agent that serves certificates from files at the paths of pilot-agent.
type sdsAgent struct {
	folder, socket string
	start, stop    func()

	environment []string // further variables of pilot-agent
	status, pid int      // of pilot-agent: its port and, once started, process ID
}

// identities alternates starts of outriderd and pilot-agent, then rotations.
func identities(t *stage, s settings) any {
	root := pkitest.NewAuthority(t, "root", nil)
	ours, theirs := outriderAgent(t), istioAgent(t, fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t)))
	result := &identityResult{}
	once := func(a *sdsAgent, rotations int) (first time.Duration, pushes []time.Duration) {
		a.issue(t, root)
		begun := time.Now()
		a.start()
		defer a.stop()
		watch := a.subscribe(t)
		first = watch.next(t, nil).Sub(begun)
		time.Sleep(warmUp) // meanwhile the Envoy of pilot-agent starts, which uses all processors
		for range rotations {
			chain, renamed := a.issue(t, root)
			pushes = append(pushes, watch.next(t, chain).Sub(renamed))
		}
		return first, pushes
	}
	for range s.runs {
		first, pushes := once(ours, 3)
		result.Outriderd = append(result.Outriderd, first)
		result.OutriderdPush = append(result.OutriderdPush, pushes...)
		first, pushes = once(theirs, 3)
		result.PilotAgent = append(result.PilotAgent, first)
		result.PilotAgentPush = append(result.PilotAgentPush, pushes...)
	}
	for _, row := range []struct {
		what         string
		ours, theirs time.Duration
	}{
		{"exec to first certificate", median(result.Outriderd), median(result.PilotAgent)},
		{"rename to push", median(result.OutriderdPush), median(result.PilotAgentPush)},
	} {
		fmt.Printf("%s, medians: outriderd %s, pilot-agent %s\n", row.what, millis(row.ours),
			millis(row.theirs))
		t.target(s, row.ours <= row.theirs, "%s is slower than pilot-agent's", row.what)
	}
	return result
}

func outriderAgent(t *stage) *sdsAgent {
	a := &sdsAgent{folder: parts.ShortDir(t)}
	a.socket = filepath.Join(a.folder, "sds.sock")
	r := rig.New(t, rig.Options{TOML: fmt.Sprintf(`[log]
level = "info"
[envoy]
termination_drain_duration = "0s"
[sds]
socket = %q
[identity]
provider = "files"
cert_file = %q
key_file = %q
root_ca_file = %q
`, a.socket, a.path("cert-chain.pem"), a.path("key.pem"), a.path("root-cert.pem"))})
	a.start = func() { r.Start() }
	a.stop = func() { stopOnce(t, r) }
	return a
}

// istioAgent returns pilot-agent, built from the module of istiod, with an Envoy of its own.
// discovery is the address of istiod.
func istioAgent(t *stage, discovery string) *sdsAgent {
	a := &sdsAgent{folder: parts.ShortDir(t), status: parts.FreePort(t)}
	program := parts.BuildIstio(t, "istio.io/istio/pilot/cmd/pilot-agent")
	source, err := parts.IstioSourceDir()
	if err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(map[string]any{
		"discoveryAddress": discovery, "concurrency": 2,
		"controlPlaneAuthPolicy": "NONE", "statusPort": a.status, "binaryPath": parts.EnvoyPath(t),
		"proxyAdminPort": parts.FreePort(t), "configPath": "./proxy", "terminationDrainDuration": "1s",
		"proxyBootstrapTemplatePath": filepath.Join(source,
			"tools/packaging/common/envoy_bootstrap.json"),
	})
	if err != nil {
		t.Fatal(err)
	}
	a.socket = filepath.Join(a.folder, "var/run/secrets/workload-spiffe-uds/socket")
	var process *exec.Cmd
	a.start = func() {
		process = exec.Command(program, "proxy", "sidecar", "--log_output_level", "default:warn",
			"--meshConfig", "./none.yaml")
		process.Dir = a.folder
		process.Env = append(os.Environ(), "POD_NAME=vm", "POD_NAMESPACE=default",
			"INSTANCE_IP=127.0.0.1", "SERVICE_ACCOUNT=default", "CLOUD_PLATFORM=none",
			"FILE_MOUNTED_CERTS=true", "TRUST_DOMAIN=cluster.local", "PROXY_CONFIG="+string(config))
		process.Env = append(process.Env, a.environment...)
		process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		process.Stdout, process.Stderr = io.Discard, os.Stderr
		if err := process.Start(); err != nil {
			t.Fatal(err)
		}
		a.pid = process.Process.Pid
	}
	a.stop = func() {
		// Kill the process group: the program and its Envoy.
		_ = syscall.Kill(-process.Process.Pid, syscall.SIGKILL)
		_ = process.Wait()
		_ = os.Remove(a.socket)
	}
	return a
}

func (a *sdsAgent) path(name string) string { return filepath.Join(a.folder, "etc", "certs", name) }

// issue replaces root, key and certificate by renames, and returns the time when the last rename
// began.
func (a *sdsAgent) issue(t *stage, root *pkitest.Authority) (chain []byte, renamed time.Time) {
	t.Helper()
	chain, key := root.Issue(t, pkitest.LeafTemplate("web", time.Hour))
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(a.path(""), 0o755))
	texts := [][]byte{pkitest.PEM(root.Certificate), key, chain}
	for i, name := range []string{"root-cert.pem", "key.pem", "cert-chain.pem"} {
		must(os.WriteFile(a.path(name+".next"), texts[i], 0o600))
		renamed = time.Now()
		must(os.Rename(a.path(name+".next"), a.path(name)))
	}
	return chain, renamed
}

// sdsWatch is a subscription to the workload's certificate.
type sdsWatch struct {
	stream secretv3.SecretDiscoveryService_StreamSecretsClient
}

// subscribe connects as soon as the agent listens.
func (a *sdsAgent) subscribe(t *stage) sdsWatch {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if connection, err := grpc.NewClient("unix:"+a.socket,
			grpc.WithTransportCredentials(insecure.NewCredentials())); err == nil {
			stream, err := secretv3.NewSecretDiscoveryServiceClient(connection).
				StreamSecrets(context.Background())
			if err == nil {
				t.Cleanup(func() { _ = connection.Close() })
				w := sdsWatch{stream}
				w.send(t, &discoveryv3.DiscoveryResponse{})
				return w
			}
			_ = connection.Close()
		}
		if time.Now().After(end) {
			t.Fatalf("nothing listens at %s", a.socket)
		}
	}
}

func (w sdsWatch) send(t *stage, to *discoveryv3.DiscoveryResponse) {
	t.Helper()
	if err := w.stream.Send(&discoveryv3.DiscoveryRequest{
		Node:    &corev3.Node{Id: "sidecar~127.0.0.1~vm.default~default.svc.cluster.local"},
		TypeUrl: xds.SecretType, ResourceNames: []string{identity.DefaultSecret},
		VersionInfo: to.VersionInfo, ResponseNonce: to.Nonce,
	}); err != nil {
		t.Fatal(err)
	}
}

// next returns the time when a certificate arrives: chain or, if chain is nil, any certificate.
func (w sdsWatch) next(t *stage, chain []byte) time.Time {
	t.Helper()
	for {
		response, err := w.stream.Recv()
		now := time.Now()
		if err != nil {
			t.Fatal(err)
		}
		w.send(t, response)
		for _, packed := range response.Resources {
			secret := &tlsv3.Secret{}
			if err := packed.UnmarshalTo(secret); err != nil {
				t.Fatal(err)
			}
			got := secret.GetTlsCertificate().GetCertificateChain()
			if text := append(got.GetInlineBytes(), got.GetInlineString()...); len(text) > 0 &&
				(chain == nil || bytes.Equal(bytes.TrimSpace(text), bytes.TrimSpace(chain))) {
				return now
			}
		}
	}
}
