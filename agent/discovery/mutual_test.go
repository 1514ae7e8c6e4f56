package discovery_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// mutualCase is a service, with the expected connection of a proxy to it.
type mutualCase struct {
	name string
	// additional fields of the ServiceEntry; location is MESH_INTERNAL unless it is among them
	entry    string
	endpoint string // additional fields of the endpoint
	rule     string // trafficPolicy of the service's DestinationRule; "": no DestinationRule
	more     string // further objects of the case, as YAML
	server   string // SPIFFE ID in the service's certificate; "": farID
	foreign  bool   // whether a CA other than the mesh's signs the service's certificate
	want     string
}

const farID = "spiffe://cluster.local/ns/bank/sa/far"

// Expected connections of a proxy: in plain text, with mutual TLS, or none.
const (
	plainText = "plain text"
	mutual    = "mutual TLS"
	failure   = "503"
)

const withAccount = "serviceAccount: far"

var mutualCases = []mutualCase{
	{name: "account", endpoint: withAccount, want: mutual},
	{name: "no-account", want: plainText},
	{name: "label", endpoint: "labels: {security.istio.io/tlsMode: istio}", want: mutual},
	{name: "label-disabled", endpoint: withAccount +
		", labels: {security.istio.io/tlsMode: disabled}", want: plainText},
	{name: "external", entry: "location: MESH_EXTERNAL", endpoint: withAccount, want: plainText},
	{name: "wrong-account", endpoint: withAccount,
		server: "spiffe://cluster.local/ns/bank/sa/other", want: failure},
	{name: "wrong-namespace", endpoint: withAccount,
		server: "spiffe://cluster.local/ns/shop/sa/far", want: failure},
	{name: "other-domain", endpoint: withAccount,
		server: "spiffe://other.example/ns/bank/sa/far", want: failure},
	{name: "alias", endpoint: withAccount, server: "spiffe://alias.example/ns/bank/sa/far",
		want: mutual},
	{name: "foreign", endpoint: withAccount, foreign: true, want: failure},
	{name: "names", entry: "subjectAltNames: [\"spiffe://cluster.local/ns/x/sa/y\"]",
		endpoint: withAccount, server: "spiffe://cluster.local/ns/x/sa/y", want: mutual},
	{name: "any-name", endpoint: "labels: {security.istio.io/tlsMode: istio}",
		server: "spiffe://cluster.local/ns/x/sa/y", want: mutual},
	{name: "rule-disable", endpoint: withAccount, rule: "tls: {mode: DISABLE}", want: plainText},
	{name: "rule-mutual", endpoint: withAccount, rule: "tls: {mode: ISTIO_MUTUAL}", want: mutual},
	{name: "rule-mutual-no-account", rule: "tls: {mode: ISTIO_MUTUAL}", want: mutual},
	{name: "rule-mutual-external", entry: "location: MESH_EXTERNAL", endpoint: withAccount,
		rule: "tls: {mode: ISTIO_MUTUAL}", want: mutual},
	{name: "rule-mutual-wrong", endpoint: withAccount, rule: "tls: {mode: ISTIO_MUTUAL}",
		server: "spiffe://cluster.local/ns/bank/sa/other", want: failure},
	{name: "rule-mutual-foreign", endpoint: withAccount, rule: "tls: {mode: ISTIO_MUTUAL}",
		foreign: true, want: failure},
	{name: "rule-mutual-names", endpoint: withAccount, rule: "tls: {mode: ISTIO_MUTUAL, " +
		"subjectAltNames: [\"spiffe://cluster.local/ns/x/sa/y\"]}",
		server: "spiffe://cluster.local/ns/x/sa/y", want: mutual},
	{name: "rule-mutual-sni", endpoint: withAccount,
		rule: "tls: {mode: ISTIO_MUTUAL, sni: far.example}", want: mutual + " to far.example"},
	{name: "rule-without-tls", endpoint: withAccount,
		rule: "connectionPool: {tcp: {maxConnections: 9}}", want: mutual},
	{name: "port-mutual", endpoint: withAccount, rule: "tls: {mode: DISABLE}, " +
		"portLevelSettings: [{port: {number: PORT}, tls: {mode: ISTIO_MUTUAL}}]", want: mutual},
	{name: "port-disable", endpoint: withAccount, rule: "tls: {mode: ISTIO_MUTUAL}, " +
		"portLevelSettings: [{port: {number: PORT}, tls: {mode: DISABLE}}]", want: plainText},
	{name: "port-silent", endpoint: withAccount, rule: "tls: {mode: DISABLE}, " +
		"portLevelSettings: [{port: {number: PORT}, connectionPool: {tcp: {maxConnections: 9}}}]",
		want: plainText},
	{name: "port-silent-mutual", endpoint: withAccount, rule: "tls: {mode: ISTIO_MUTUAL}, " +
		"portLevelSettings: [{port: {number: PORT}, connectionPool: {tcp: {maxConnections: 9}}}]",
		want: mutual},
	{name: "http2", entry: "ports: [{number: PORT, name: p, protocol: HTTP2}]",
		endpoint: withAccount, want: mutual + " with h2"},
	{name: "dns", entry: "resolution: DNS", endpoint: withAccount, want: mutual},
	{name: "workload-disabled", endpoint: withAccount + ", labels: {app: quiet}",
		more: peerPolicy("quiet", "bank", "quiet", "DISABLE", ""), want: plainText},
	{name: "workload-strict", endpoint: withAccount + ", labels: {app: strict}",
		more: peerPolicy("strict", "bank", "strict", "STRICT", ""), want: mutual},
	{name: "workload-elsewhere", endpoint: withAccount + ", labels: {app: elsewhere}",
		more: peerPolicy("elsewhere", "shop", "elsewhere", "DISABLE", ""), want: mutual},
	{name: "workload-port-disabled", endpoint: withAccount + ", labels: {app: port}",
		more: peerPolicy("port", "bank", "port", "STRICT", "DISABLE"), want: plainText},
	{name: "workload-port-mutual", endpoint: withAccount + ", labels: {app: port2}",
		more: peerPolicy("port2", "bank", "port2", "DISABLE", "STRICT"), want: mutual},
	{name: "workload-disabled-rule", endpoint: withAccount + ", labels: {app: quiet}",
		rule: "tls: {mode: ISTIO_MUTUAL}", want: mutual},
	{name: "namespace-disabled", endpoint: withAccount,
		more: peerPolicy("all", "quiet", "", "DISABLE", ""), entry: "namespace: quiet",
		server: "spiffe://cluster.local/ns/quiet/sa/far", want: plainText},
	{name: "namespace-strict", endpoint: withAccount,
		more: peerPolicy("all", "strict", "", "STRICT", ""), entry: "namespace: strict",
		server: "spiffe://cluster.local/ns/strict/sa/far", want: mutual},
	{name: "namespace-disabled-workload-strict", endpoint: withAccount + ", labels: {app: loud}",
		more: peerPolicy("loud", "quiet", "loud", "STRICT", ""), entry: "namespace: quiet",
		server: "spiffe://cluster.local/ns/quiet/sa/far", want: plainText},
}

// peerPolicy returns a PeerAuthentication. With app "" it is for the whole namespace; port is the
// mode for the endpoint's port, TARGET.
func peerPolicy(name, namespace, app, mode, port string) string {
	text := "---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: " +
		name + ", namespace: " + namespace + "}\nspec:\n  mtls: {mode: " + mode + "}\n"
	if app != "" {
		text += "  selector: {matchLabels: {app: " + app + "}}\n"
	}
	if port != "" {
		text += "  portLevelMtls: {TARGET: {mode: " + port + "}}\n"
	}
	return text
}

// yaml returns the objects of the case, with a service on a port that has an endpoint on the port
// target.
func (c mutualCase) yaml(port, target int) string {
	fields := map[string]string{"location": "MESH_INTERNAL", "resolution": "STATIC",
		"namespace": "bank", "ports": "[{number: PORT, name: p, protocol: HTTP}]"}
	if key, value, ok := strings.Cut(c.entry, ": "); ok {
		fields[key] = value
	}
	namespace := fields["namespace"]
	delete(fields, "namespace")
	text := "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: " +
		c.name + ", namespace: " + namespace + "}\nspec:\n  hosts: [" + c.name + ".test]\n"
	for key, value := range fields {
		text += "  " + key + ": " + value + "\n"
	}
	endpoint := "address: 127.0.0.1, ports: {p: TARGET}"
	if c.endpoint != "" {
		endpoint += ", " + c.endpoint
	}
	text += "  endpoints: [{" + endpoint + "}]\n"
	if c.rule != "" {
		text += "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: " +
			c.name + ", namespace: " + namespace + "}\nspec: {host: " + c.name +
			".test, trafficPolicy: {" + c.rule + "}}\n"
	}
	return strings.NewReplacer("PORT", fmt.Sprint(port), "TARGET", fmt.Sprint(target)).
		Replace(text + c.more)
}

// TestMutualTLS_ToServicesAsWithIstiod sends requests to services through a proxy, and through one
// that a real istiod configures. Both must connect to each service in the same way.
func TestMutualTLS_ToServicesAsWithIstiod(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	pki := newMeshPKI(t)
	const first, marker = 7500, 7490
	objects := fmt.Sprintf(stepService, marker, echoTCP(t, "step"))
	for i, c := range mutualCases {
		signer, id := pki.mesh, c.server
		if id == "" {
			id = farID
		}
		if c.foreign {
			signer = pki.foreign
		}
		objects += c.yaml(first+i, serveEither(t, issueID(t, signer, id)))
	}
	for _, by := range []string{"outrider", "istiod"} {
		t.Run(by, func(t *testing.T) {
			proxy := startPeer(t, "sidecar", by, "trustDomainAliases: [alias.example]", pki)
			proxy.apply(t, objects, fmt.Sprintf("127.0.0.1:%d", marker))
			proxy.listens(t)
			for i, c := range mutualCases {
				want := c.want
				if c.want == mutual || strings.HasSuffix(want, "with h2") {
					want = strings.Replace(want, mutual, fmt.Sprintf("%s to outbound_.%d_._.%s.test",
						mutual, first+i, c.name), 1)
				}
				got := howConnected(t, first+i, c.name)
				if got != want {
					t.Errorf("%s: %s, want %s", c.name, got, want)
				}
				proxy.explainConnection(t, first+i, c.name, got)
			}
		})
	}
}

// howConnected sends a request for a host to a port, and returns the backend's description of the
// connection from the proxy: plain text, or the client certificate.
func howConnected(t *testing.T, port int, host string) string {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), nil)
	must(t, err)
	request.Host = fmt.Sprintf("%s.test:%d", host, port)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true},
		Timeout: 10 * time.Second}
	response, err := client.Do(request)
	if err != nil {
		return err.Error()
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Sprint(response.StatusCode)
	}
	return response.Header.Get("x-connection")
}

// serveEither runs a backend that accepts plain text and TLS, and requests client certificates. The
// header x-connection of its response describes the connection. It returns the port.
func serveEither(t *testing.T, certificate *tls.Certificate) int {
	t.Helper()
	config := &tls.Config{Certificates: []tls.Certificate{*certificate},
		ClientAuth: tls.RequireAnyClientCert}
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if !slices.Contains(hello.SupportedProtos, "istio") {
			return nil, fmt.Errorf("the client offers %v", hello.SupportedProtos)
		}
		own := config.Clone()
		if slices.Contains(hello.SupportedProtos, "h2") {
			// the ALPN protocol "istio" is removed, because net/http does not support it
			own.NextProtos = []string{"h2"}
		}
		return own, nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	handler := func(w http.ResponseWriter, r *http.Request) {
		how := plainText
		if state := r.TLS; state != nil {
			how = mutual + " to " + state.ServerName
			if id := state.PeerCertificates[0].URIs[0].String(); id != vmID {
				how += " as " + id
			}
			if state.NegotiatedProtocol == "h2" {
				how += " with h2"
			}
		}
		w.Header().Set("x-connection", how)
	}
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	return run(t, &http.Server{Handler: http.HandlerFunc(handler), Protocols: protocols},
		eitherListener{listener, config})
}

// eitherListener accepts plain text and TLS.
type eitherListener struct {
	net.Listener
	config *tls.Config
}

// Accept implements net.Listener.
func (l eitherListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	peeked := peekedConn{raw, bufio.NewReader(raw)}
	if begin, err := peeked.reader.Peek(1); err == nil && begin[0] == tlsHandshake {
		return tls.Server(peeked, l.config), nil
	}
	return peeked, nil
}

const tlsHandshake = 0x16 // first byte of a TLS connection

// peekedConn is a connection from which some bytes were read already.
type peekedConn struct {
	net.Conn
	reader *bufio.Reader
}

// Read implements net.Conn.
func (c peekedConn) Read(p []byte) (int, error) { return c.reader.Read(p) }
