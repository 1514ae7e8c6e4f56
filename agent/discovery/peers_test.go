package discovery_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
)

// Ports of the workload. Proxies without interception have listeners for the first three only.
const (
	peerHTTP  = 7301 // port with HTTP
	peerTCP   = 7302 // port with TCP
	peerOwn   = 7303 // port with HTTP for which a step may set a mode of mutual TLS
	peerAuto  = 7304 // port without a protocol
	peerOther = 7305 // port that is in no service
	peerAlone = 7306 // port that is in no service, for which a step may set a mode of mutual TLS
)

// peerSidecar is a Sidecar with ingress listeners: without them, a proxy without interception has
// no inbound listener.
const peerSidecar = `apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec:
  ingress:
  - {port: {number: 7301, protocol: HTTP, name: http}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:%[1]d"}
  - {port: {number: 7302, protocol: TCP, name: tcp}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:%[1]d"}
  - {port: {number: 7303, protocol: HTTP, name: own}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:%[1]d"}
`

// peerService declares ports of a workload with interception.
const peerService = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: here, namespace: shop}
spec:
  hosts: [here.test]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 7301, name: http, protocol: HTTP}
  - {number: 7302, name: tcp, protocol: TCP}
  - {number: 7303, name: own, protocol: HTTP}
  - {number: 7304, name: auto}
  endpoints: [{address: 10.8.0.1, labels: {app: edge}}]
`

// stepService is a TCP service. Once its port answers, Envoy has received the objects of a step.
const stepService = `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: step, namespace: shop}
spec: {hosts: [step.test], resolution: STATIC, ports: [{number: %d, name: step, protocol: TCP}], endpoints: [{address: 127.0.0.1, ports: {step: %v}}]}
`

// peerStep is a set of PeerAuthentications and the resulting modes of mutual TLS. Each object is
// "NAMESPACE SELECTED MODE" or "NAMESPACE SELECTED MODE PORTMODE". SELECTED is all, app (this
// workload) or other (another workload). PORTMODE is the mode in portLevelMtls for the ports
// peerOwn and peerAlone; own is the resulting mode of these ports.
type peerStep struct {
	objects   []string
	mode, own string
}

var peerSteps = []peerStep{
	{nil, "PERMISSIVE", "PERMISSIVE"},
	{[]string{"istio-system all UNSET"}, "PERMISSIVE", "PERMISSIVE"},
	{[]string{"istio-system all DISABLE"}, "DISABLE", "DISABLE"},
	{[]string{"istio-system all PERMISSIVE"}, "PERMISSIVE", "PERMISSIVE"},
	{[]string{"istio-system all STRICT"}, "STRICT", "STRICT"},
	{[]string{"istio-system all STRICT", "shop all UNSET"}, "STRICT", "STRICT"},
	{[]string{"istio-system all STRICT", "shop all DISABLE"}, "DISABLE", "DISABLE"},
	{[]string{"istio-system all STRICT", "shop all PERMISSIVE"}, "PERMISSIVE", "PERMISSIVE"},
	{[]string{"istio-system all DISABLE", "shop all STRICT"}, "STRICT", "STRICT"},
	{[]string{"istio-system all DISABLE", "bank all STRICT"}, "DISABLE", "DISABLE"},
	{[]string{"istio-system app STRICT"}, "PERMISSIVE", "PERMISSIVE"},
	{[]string{"shop all STRICT", "shop app UNSET"}, "STRICT", "STRICT"},
	{[]string{"shop all STRICT", "shop app DISABLE"}, "DISABLE", "DISABLE"},
	{[]string{"shop all STRICT", "shop app PERMISSIVE"}, "PERMISSIVE", "PERMISSIVE"},
	{[]string{"shop all DISABLE", "shop app STRICT"}, "STRICT", "STRICT"},
	{[]string{"shop all DISABLE", "shop other STRICT"}, "DISABLE", "DISABLE"},
	{[]string{"shop app STRICT DISABLE"}, "STRICT", "DISABLE"},
	{[]string{"shop app STRICT PERMISSIVE"}, "STRICT", "PERMISSIVE"},
	{[]string{"shop app DISABLE STRICT"}, "DISABLE", "STRICT"},
	{[]string{"shop all STRICT", "shop app DISABLE UNSET"}, "DISABLE", "DISABLE"},
	{[]string{"shop all STRICT", "shop app UNSET UNSET"}, "STRICT", "STRICT"},
	{[]string{"istio-system all STRICT", "shop app UNSET DISABLE"}, "STRICT", "DISABLE"},
}

// yaml returns the objects of the step.
func (s peerStep) yaml() string {
	var text strings.Builder
	for i, words := range s.objects {
		part := strings.Fields(words)
		fmt.Fprintf(&text, "---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\n"+
			"metadata: {name: p%d, namespace: %s}\nspec:\n  mtls: {mode: %s}\n", i, part[0],
			part[2])
		if label := map[string]string{"app": "edge", "other": "other"}[part[1]]; label != "" {
			fmt.Fprintf(&text, "  selector: {matchLabels: {app: %s}}\n", label)
		}
		if len(part) > 3 {
			fmt.Fprintf(&text, "  portLevelMtls: {%d: {mode: %s}, %d: {mode: %s}}\n", peerOwn,
				part[3], peerAlone, part[3])
		}
	}
	return text.String()
}

// peerClient is a client that connects to a port.
type peerClient struct {
	name     string
	identity *tls.Certificate // certificate of the client; nil: none
	plain    bool
	alpn     []string
	sni      string
	// modes in which the client is admitted: "DISABLE PERMISSIVE STRICT"
	admitted string
}

func peerClients(t *testing.T, pki meshPKI) []peerClient {
	t.Helper()
	istio := []string{"istio"}
	return []peerClient{
		{name: "plain text", plain: true, admitted: "DISABLE PERMISSIVE"},
		{name: "mesh identity", identity: issueID(t, pki.mesh,
			"spiffe://cluster.local/ns/bank/sa/client"), alpn: istio, admitted: "PERMISSIVE STRICT"},
		{name: "mesh identity and HTTP", identity: issueID(t, pki.mesh,
			"spiffe://cluster.local/ns/bank/sa/client"), alpn: []string{"istio-http/1.1", "istio"},
			admitted: "PERMISSIVE STRICT"},
		{name: "mesh identity without Istio's ALPN", identity: issueID(t, pki.mesh,
			"spiffe://cluster.local/ns/bank/sa/client"), admitted: "STRICT"},
		{name: "identity of another trust domain", identity: issueID(t, pki.mesh,
			"spiffe://other.example/ns/bank/sa/client"), alpn: istio},
		{name: "identity of an alias", identity: issueID(t, pki.mesh,
			"spiffe://alias.example/ns/bank/sa/client"), alpn: istio,
			admitted: "PERMISSIVE STRICT"},
		{name: "identity of another authority's domain", identity: issueID(t, pki.mesh,
			"spiffe://partner.example/ns/bank/sa/client"), alpn: istio,
			admitted: "PERMISSIVE STRICT"},
		{name: "foreign identity", identity: issueID(t, pki.foreign,
			"spiffe://cluster.local/ns/bank/sa/client"), alpn: istio},
		{name: "no identity", alpn: istio},
	}
}

// ask sends a request and returns the status of the response, or "refused".
func (c peerClient) ask(address string) string {
	return c.send(address, "GET / HTTP/1.1\r\nHost: any.test\r\n\r\n")
}

// send sends the text of a request, and returns the status of the response, or "refused". With TLS,
// the server must present the proxy's SPIFFE ID.
func (c peerClient) send(address, request string) string {
	raw, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return "refused"
	}
	defer func() { _ = raw.Close() }()
	_ = raw.SetDeadline(time.Now().Add(5 * time.Second))
	connection := raw
	if !c.plain {
		config := &tls.Config{InsecureSkipVerify: true, NextProtos: c.alpn, ServerName: c.sni,
			VerifyConnection: func(state tls.ConnectionState) error {
				if id := state.PeerCertificates[0].URIs[0].String(); id != vmID {
					return fmt.Errorf("the server is %s", id)
				}
				return nil
			}}
		if c.identity != nil {
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate,
				error) {
				return c.identity, nil
			}
		}
		connection = tls.Client(raw, config)
	}
	_, err = io.WriteString(connection, request)
	if err != nil {
		return "refused"
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		return "refused"
	}
	return fmt.Sprint(response.StatusCode)
}

const vmID = "spiffe://cluster.local/ns/shop/sa/vm"

// TestPeerAuthentication_AnswersAsWithIstiod sends requests of several clients to a proxy with each
// combination of PeerAuthentications, and to one that a real istiod configures. Both must answer as
// the resulting mode requires.
func TestPeerAuthentication_AnswersAsWithIstiod(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	pki := newMeshPKI(t)
	clients := peerClients(t, pki)
	redirect(t)
	for _, port := range []int{peerHTTP, peerTCP, peerOwn, peerAuto, peerOther, peerAlone} {
		listener, err := net.Listen("tcp", net.JoinHostPort(capturedAddress, fmt.Sprint(port)))
		must(t, err)
		run(t, &http.Server{Handler: &backend{name: "here"}}, listener)
	}
	a, echo := (&backend{name: "a"}).serve(t, false), echoTCP(t, "step")
	// With ALLOW_ANY, the proxy's own connections to an unknown destination would be captured
	// again.
	meshConfig := fmt.Sprintf("trustDomainAliases: [alias.example]\n"+
		"caCertificates: [{pem: %q, trustDomains: [partner.example]}]\n"+
		"outboundTrafficPolicy: {mode: REGISTRY_ONLY}", pkitest.PEM(pki.mesh.Certificate))
	for _, kind := range []string{"sidecar", "REDIRECT"} {
		address, marker, objects := "127.0.0.1", "127.0.0.1", fmt.Sprintf(peerSidecar, a)+
			stepService
		ports := []int{peerHTTP, peerTCP, peerOwn}
		if kind == "REDIRECT" {
			address, marker = capturedAddress, "10.9.1.1"
			objects = peerService + strings.Replace(stepService, "resolution",
				"addresses: ["+marker+"], resolution", 1)
			ports = append(ports, peerAuto, peerOther, peerAlone)
		}
		for _, by := range []string{"outrider", "istiod"} {
			t.Run(kind+"/"+by, func(t *testing.T) {
				proxy := startPeer(t, kind, by, meshConfig, pki)
				for i, step := range peerSteps {
					at := 7400 + i
					proxy.apply(t, fmt.Sprintf(objects, at, echo)+step.yaml(),
						fmt.Sprintf("%s:%d", marker, at))
					for _, port := range ports {
						mode := step.mode
						if port == peerOwn || port == peerAlone {
							mode = step.own
						}
						proxy.explainPlain(t, address, port, mode)
						for _, c := range clients {
							c.expect(t, fmt.Sprintf("%s:%d", address, port), mode, step)
						}
					}
				}
				t.Logf("%d answers", len(peerSteps)*len(ports)*len(clients))
			})
		}
	}
}

// expect sends requests to a port with a mode until the answer is right. Envoy's workers get a new
// listener one after the other, so the first answers may be wrong.
func (c peerClient) expect(t *testing.T, address, mode string, step peerStep) {
	t.Helper()
	want := "refused"
	if strings.Contains(c.admitted, mode) {
		want = "200"
	}
	got := ""
	if !parts.Poll(3*time.Second, func() bool { got = c.ask(address); return got == want }) {
		t.Errorf("%v: %s, %s: %s, want %s", step.objects, address, c.name, got, want)
	}
}

// peer is a proxy with an identity, and the file from which its control plane reads objects.
type peer struct {
	*envoy
	file string
	// notifies the server of changed files; nil: istiod watches the folder itself
	changes chan<- []string
	kind    string
	server  *discovery.Server // Outrider's discovery server; nil: istiod configures the proxy
}

// startPeer starts a proxy of a kind (see bootstrapOf). by says whether Outrider's discovery server
// or an istiod configures it.
func startPeer(t testing.TB, kind, by, meshConfig string, pki meshPKI) peer {
	t.Helper()
	folder := t.TempDir()
	p := peer{file: filepath.Join(folder, "mesh.yaml"), kind: kind}
	with := withIdentity(t, pki.secrets(t, vmID))
	if by == "outrider" {
		config := filepath.Join(t.TempDir(), "mesh.yaml")
		write(t, config, meshConfig)
		server, changes := start(t, discovery.Options{Files: []string{folder}, Namespace: "shop",
			Settings: discovery.Settings{MeshConfigFile: config}})
		p.changes, p.server = changes, server
		p.envoy = startEnvoyWith(t, kind, server, with)
		return p
	}
	admin := filepath.Join(parts.ShortDir(t), "admin.sock")
	text := with(bootstrapOf(kind, admin, startIstiod(t, folder, meshConfig)))
	p.envoy = startEnvoyOn(t, admin, strings.Replace(text, "~127.0.0.1~", "~10.255.0.1~", 1))
	return p
}

// put replaces the objects in the file.
func (p peer) put(t testing.TB, objects string) {
	t.Helper()
	write(t, p.file, objects)
	if p.changes != nil {
		p.changes <- []string{p.file}
	}
}

// apply replaces the objects, and waits until they are in force: until a TCP service that only the
// new objects have responds at the address marker.
func (p peer) apply(t *testing.T, objects, marker string) {
	t.Helper()
	p.put(t, objects)
	eventually(t, "the objects with "+marker+" are in force", func() (bool, string) {
		reply := exchangeTCP(marker, "hello")
		return reply.body == "step:hello\n", fmt.Sprint(reply.err)
	})
}
