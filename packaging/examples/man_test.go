package examples

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/packaging/man"
	"outrider.org/outrider/scripts/parts"
)

var update = flag.Bool("update", false, "write the manual page anew")

// flags are the response flags that users meet, in the order of the page.
var flags = []struct{ name, text string }{
	{"NR", "404: no route matches, or no server has the host. Ask \"outrider mesh explain\"."},
	{"UH", "503: the destination has no healthy endpoint: its name does not resolve, no\n" +
		"endpoint has the labels of the subset, or outlier detection has ejected all.\n" +
		"See \"outrider proxy endpoints\"."},
	{"UF", "503: the connection to the endpoint failed: nothing listens there, a firewall\n" +
		"drops it, or TLS failed, for example since its certificate is not trusted."},
	{"URX", "The last of all retries failed, or connect attempts are used up; UF and others\n" +
		"beside it say how."},
	{"UC", "503: the endpoint closed the connection before it answered."},
	{"UR", "503: the endpoint reset the connection or the stream."},
	{"UT", "504: the timeout of the route is over."},
	{"UO", "503: a limit of the DestinationRule's connectionPool is reached."},
	{"NC", "503: the route names a service or subset that does not exist."},
	{"DC", "The client closed the connection before it had the answer. Nothing is wrong\n" +
		"here; the status is 0, or that of the unfinished answer."},
	{"DPE", "400: the client's request is not valid HTTP, or is TLS on a port without TLS."},
	{"SI", "408: the stream was idle longer than allowed."},
	{"DI, FI", "A fault of the VirtualService delayed the request, or answered it."},
}

// directions describe mutual TLS by the direction of a connection.
var directions = []struct{ name, text string }{
	{"to other services", "" +
		"A DestinationRule with tls mode ISTIO_MUTUAL presents the certificate and\n" +
		"expects one of the mesh. Without a rule, connections to endpoints of a\n" +
		"ServiceEntry with location MESH_INTERNAL do the same if the endpoint has a\n" +
		"`serviceAccount` or the label `security.istio.io/tlsMode: istio`, and no\n" +
		"PeerAuthentication disables it; `enableAutoMtls: false` in MeshConfig turns\n" +
		"this off. The certificate must have a SPIFFE ID of the service's accounts, or one\n" +
		"of its `subjectAltNames`; aliases of the trust domain count."},
	{"from other workloads", "" +
		"PeerAuthentication counts on the ports of a Sidecar's ingress and on captured\n" +
		"ports. One in the root namespace (istio-system) is for the mesh, one without a\n" +
		"selector for its namespace, one with a selector for those workloads, and its\n" +
		"`portLevelMtls` for a port; the narrowest that is not UNSET counts, and\n" +
		"without any PERMISSIVE. Clients need a certificate of the mesh's trust domain\n" +
		"or its aliases. `tls` of a Sidecar's ingress counts with DISABLE, or without a\n" +
		"PeerAuthentication."},
}

// addedHeaders are the headers that Envoy adds, in the order of the page.
var addedHeaders = []struct{ name, text string }{
	{"server: istio-envoy", "In responses, instead of that of the server behind."},
	{"x-envoy-upstream-service-time", "In responses: milliseconds that the server needed."},
	{"x-request-id, x-forwarded-for, x-forwarded-proto", "In requests: an identifier, the\n" +
		"client's address and the scheme. Behind another proxy see the example trusted-proxies."},
	{"x-envoy-external-address", "In requests of clients with a public address: that address."},
	{"x-envoy-attempt-count", "In requests: 1, and more with each retry."},
	{"x-envoy-expected-rq-timeout-ms", "In requests of routes with a timeout: that timeout."},
}

// TestManPage compares outrider-mesh(5) with the page that meshPage generates from the texts in
// this package and the examples.
func TestManPage(t *testing.T) {
	file := filepath.Join(parts.RepositoryRoot(), "packaging", "man", "outrider-mesh.5")
	want := meshPage()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(got), want); diff != "" {
		t.Errorf("%s (-update writes it): -file +definitions:\n%s", file, diff)
	}
}

// TestManPage_HasEveryKind compares the page's kinds with those of the discovery server.
func TestManPage_HasEveryKind(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(parts.RepositoryRoot(),
		"agent/discovery/object/kinds.go"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	constants := regexp.MustCompile(`Kind = "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	for _, found := range constants {
		known[found[1]] = true
	}
	described := map[string]bool{}
	for _, kind := range kinds {
		described[kind.name] = true
	}
	if diff := cmp.Diff(known, described); diff != "" {
		t.Errorf("-kinds.go +page:\n%s", diff)
	}
}

func meshPage() string {
	p := man.New("outrider-mesh", 5, "where requests go: the files in /etc/outrider/mesh.d")
	p.Section("SYNOPSIS")
	p.Text("`/etc/outrider/mesh.d/*.yaml`, `*.yml`, `*.json`")
	p.Text("`/etc/outrider/`NAME`.mesh.d/*.yaml` for the instance NAME, if [discovery] files " +
		"names it")
	p.Section("DESCRIPTION")
	p.Text(`outrider.toml(5) says how the agent and Envoy run. What Envoy serves is in
these files: objects of Istio's networking API in YAML, several in a file,
separated by "---". Istio itself is not needed. How files are named and
divided makes no difference.

A changed file takes effect within a second: Envoy is neither restarted nor
reloaded, and no request is lost. An object with an error, or that Envoy
refuses, changes nothing: its last good version stays in use. An object that is
no longer in its file is removed. A file that is cut off between two objects is
valid without the second one: write a new file beside it under a name that does
not end in .yaml, .yml or .json, and rename it. See what is wrong with

  outrider mesh check

and what happens to a request, and which line of which file decides it, with

  outrider mesh explain www.example.com/api/

Every object has apiVersion "networking.istio.io/v1", a kind, a name and a
spec; of PeerAuthentication it is "security.istio.io/v1". The namespace may be
left out. Every kind and field is in /usr/share/doc/outrider/reference, as HTML
pages of Istio's reference, which also list what this version does not support:
"outrider mesh check" refuses it or warns of it by name.`)
	p.Section("HEADERS")
	p.Text("Envoy adds to requests and responses, as with Istio:")
	for _, header := range addedHeaders {
		p.Term(man.Bold(header.name), header.text)
	}
	p.Text("The example plain-headers leaves out those that begin with x-envoy, and\n" +
		"`istio-envoy`; `headers` of a VirtualService sets and removes others. Envoy calls\n" +
		"itself istio-proxy (--service-cluster), for example in traces: set `service_cluster`\n" +
		"in [node].")
	p.Section("CREDENTIALS")
	p.Text("`credentialName` of Gateways and DestinationRules is the name of a folder\n" +
		`in credentials_dir (/etc/outrider/credentials, see outrider.toml(5))
with the files of a Kubernetes secret:

  /etc/outrider/credentials/shop/tls.crt     certificate chain
  /etc/outrider/credentials/shop/tls.key     its key
  /etc/outrider/credentials/shop/ca.crt      authorities of the other side
  /etc/outrider/credentials/shop/ca.crl      certificates that these revoked (optional)

Authorities may be in a folder of their own instead, shop-cacert. Only the agent
reads the files, and it passes them to Envoy without writing them anywhere:

  install -d -m 750 -g outrider /etc/outrider/credentials/shop
  install -m 400 -o outrider shop.crt /etc/outrider/credentials/shop/tls.crt
  install -m 400 -o outrider shop.key /etc/outrider/credentials/shop/tls.key

credentialName: sds://NAME is the secret sds://NAME of an SDS server of the host,
whose socket is credentials_sds in outrider.toml(5); authorities are its secret
sds://NAME-cacert. Envoy connects to the socket itself, so that its user needs
access.

A replaced file is used at once. This is the better way for certificates of
Gateways: certificate and key are replaced together, keys are not Envoy's, and an
expired certificate does not replace a valid one. Of files (serverCertificate and
privateKey), which Envoy reads, "outrider certs" and the conditions
certificate-expired and certificate-not-renewed (less than a tenth of the lifetime
and less than 14 days are left) tell the same.

The files of certbot are closed, and stay closed: its deploy hook installs copies
(example certbot). Files may be symbolic links to folders that the user outrider
may enter. Folders and files must belong to root or to the user outrider, and
nobody else may write to them.`)
	p.Section("KINDS")
	for _, kind := range kinds {
		p.Term(man.Bold(kind.name), kind.text)
	}
	p.Text(`A policy (a kind of security.istio.io) that becomes invalid keeps its last valid
version. Without one, every request and connection to the workloads that it selects
is denied (403), as serving without it would open what it closes: to its namespace
if its selector cannot be read, and to everything on this host if a file cannot be
read that mentions a policy, not only in a comment, of which no valid version is
known. The problem names the file and line. A policy that is missing from a file
stays in force while the file has an error.

A file of 0 bytes that had policies may be cut off: they stay in force, with an
error, until it is written again or removed. To end them, write a comment ("# none").
A file with policies that is broken while no agent runs denies everything on this
host when the next one starts, even if it does not mention a policy any more.

Of several policies of one kind, namespace and name the one in the file whose path
sorts first is in force, and each other one that differs from it denies what it
selects, too. To replace a file, rename it, or edit the copy after the file is gone.

In the phases AUTHN and AUTHZ a WasmPlugin or TrafficExtension is a policy, too. An invalid
policy denies what it selects. So does a policy's kind in an API group or version that is
unknown, an unknown kind in a group of Istio (but networking, telemetry and install),
and one of any group whose spec is that of a policy. Other kinds (HTTPRoute, Service
and others) are ignored, and listed by "outrider mesh check".`)
	fields(p)
	p.Section("ROUTER AND SIDECAR")
	p.Text(`With type = "router" in [node] this host is a proxy of its own: it listens
where Gateways say. All examples below are of this kind.

With type = "sidecar", the default, Envoy stands beside an application and
carries its requests to other services: each port of a ServiceEntry is a
listener on 127.0.0.1, and the Host header chooses the service.

An HTTP proxy is one listener for all HTTP ports of all services, for applications with
` + "`http_proxy`" + ` in their environment:`)
	p.Example(`apiVersion: networking.istio.io/v1
kind: Sidecar
metadata:
  name: default
spec:
  egress:
  - port: {number: 3128, name: proxy, protocol: HTTP_PROXY}
    hosts: ["*/*"]               # what can be reached by it
  - hosts: ["*/*"]               # all other ports`)
	p.Text(`With proxyHttpPort: 3128 in the MeshConfig (` + "`mesh_config_file`" + ` in [discovery]) every
sidecar has one, for the hosts of the egress listener without a port. The port in the URL,
80 by default, chooses the port of the service, with all that VirtualServices and
DestinationRules say of it. Other hosts and ports get 502, or go where outboundTrafficPolicy
says. The proxy is no tunnel: a client that asks it for an https:// URL (CONNECT) gets 404;
one that sends it the URL without CONNECT is answered as for http://, by port 80 if the URL has
no port.
It listens on 127.0.0.1; with another ` + "`bind`" + ` whoever reaches it sends requests with the
identity of this host, which is a warning. Try it, and see what happens:`)
	p.Example(`curl -x http://127.0.0.1:3128 http://api.internal:8080/
outrider mesh explain api.internal:8080/ --proxy 127.0.0.1:3128`)
	p.Section("IDENTITY")
	p.Text(`The certificate of the mesh comes from ` + "`provider`" + ` in [identity]: files, istiod's
authority or SPIRE (outrider.toml(5) has all keys). For example from files,
in /etc/outrider/conf.d/60-identity.toml:`)
	p.Example(`[identity]
provider = "files"
cert_file = "/etc/outrider/tls/web.crt"       # leaf first, then intermediates
key_file = "/etc/outrider/tls/web.key"        # chown outrider, chmod 400
root_ca_file = "/etc/outrider/tls/roots.crt"
`)
	p.Text(`The certificate must name the workload, with its trust domain, namespace and
account of [node], as an URI in its subjectAltName (openssl: -addext
"subjectAltName=URI:spiffe://cluster.local/ns/default/sa/web"); with another name, or a
DNS name alone, other workloads of the mesh refuse it.`)
	p.Text("or from istiod, with a token for the audience istio-ca:")
	p.Example(`[node]
namespace = "vm"
service_account = "web"
[identity]
provider = "istiod"
ca_address = "istiod.istio-system.svc:15012"
root_ca_file = "/etc/outrider/istio-root.pem"
token_file = "/etc/outrider/istio-token"      # chown outrider, chmod 400
`)
	p.Text(`The token is needed for the first certificate. With auth = "mtls" in [discovery]
and no ` + "`prov_cert_dir`" + ` the agent renews with the certificate that it has.

Replaced files take effect by themselves. "outrider certs" lists what there is,
until when, and what is missing and why; "outrider status" and the journal say
so, too. ` + "`output_dir`" + `, for other programs, is a folder in /run/outrider, or one
that a drop-in of outrider.service opens (ReadWritePaths=).`)
	p.Section("MUTUAL TLS")
	p.Text(`With an identity a proxy has a certificate of the mesh, and connections between
workloads use mutual TLS as with Istio:`)
	for _, direction := range directions {
		p.Term(direction.name, direction.text)
	}
	p.Text(`Without an identity, and before the first certificate, STRICT accepts nothing
and ISTIO_MUTUAL sends nothing. A path of [discovery] files that does not
exist at the start may have policies: nothing is served until it exists. The
same applies to a MeshConfig that was never valid, if there are policies.

STRICT protects the ports of Envoy. With ` + "`mode = \"redirect\"`" + ` in [capture] that
is every port of the host but ` + "`exclude_inbound_ports`" + ` and Outrider's own,
which "outrider status" lists as outside mutual TLS; while Envoy does not serve,
inbound connections are refused (` + "`fail_inbound`" + `). Without interception let the
application listen on 127.0.0.1 only. A port that STRICT applies to and that
other hosts reach past Envoy is the condition mutual-tls-bypassed and an error
of "outrider mesh check", and the agent is not ready. "outrider status" counts
connections that are older than the rules, which stay. "outrider mesh explain"
shows which certificates the sides of a connection present and expect,
and the PeerAuthentication of an endpoint that would refuse the connection.

` + "`caCertificates`" + ` of MeshConfig are authorities besides those of the identity, for
example of a mesh whose workloads call this host's: certificates (` + "`pem`" + `), or a
SPIFFE bundle that the agent fetches over https with the system's authorities,
again when the bundle says so or after five minutes (` + "`spiffeBundleUrl`" + `; while that
fails, the roots that were fetched last remain trusted, also after a restart,
and the condition trust-bundle-unavailable says why). The agent's own
connections do not trust them. Clients of their ` + "`trustDomains`" + ` are accepted,
too. As with istiod, an authority is trusted for every trust domain, and
` + "`certSigners`" + ` has no effect.`)
	p.Section("PRECEDENCE")
	p.Text(`Of two objects for the same port and host the older counts, as with Istio: the
one with the earlier metadata.creationTimestamp (none is the earliest), then the
one whose file sorts first by its path, then the one further up in the file.
"outrider mesh check", "outrider status" and the journal warn of what is never
reached, with file and line of both.

HTTP servers of several Gateways share a port. For a host that several
VirtualServices name, all routes are merged, those of the older first, routes
for all requests last. On a sidecar the older VirtualService counts alone, and
one that names the host counts before one with a pattern. A host with TLS
belongs to one server of a port, and a TCP port to one server.`)
	p.Section("EXAMPLES")
	p.Text(`The package has them as files, with instructions, in
/usr/share/doc/outrider/examples; "outrider example show" NAME prints them.
Each comes with conf.d/10-router.toml, which sets the type.`)
	for _, example := range AllExamples() {
		p.Subsection(example.Name + ": " + lowerFirst(example.Summary))
		for i, file := range example.Files {
			if i > 0 && file.Path != "conf.d/10-router.toml" {
				p.Text("and in /etc/outrider/" + file.Path + ":")
			}
			if file.Path != "conf.d/10-router.toml" {
				p.Example(withoutHeader(file.Text))
			}
		}
	}
	p.Section("RESPONSE FLAGS")
	p.Text(`An access log (` + "`" + `access_log_file` + "`" +
		` in [telemetry]) has Envoy's response flags after
the status, "-" for none. %UPSTREAM_TRANSPORT_FAILURE_REASON% in
` + "`" + `access_log_format` + "`" + ` adds why a connection failed. Envoy writes a line
within a second. Without a log, "outrider status" and the journal say which backend
fails, since when and why; "outrider mesh check" and "outrider mesh explain" say which destination does not resolve, and
whose certificate is not trusted.`)
	for _, flag := range flags {
		p.Term(man.Bold(flag.name), flag.text)
	}
	p.Section("FILES")
	p.Term(man.Italic("/etc/outrider/mesh.d"),
		"Read with its subfolders, and watched. Another place: [discovery] `files`.")
	p.Term(man.Italic("/usr/share/doc/outrider/examples"), "The examples.")
	p.Term(man.Italic("/usr/share/doc/outrider/reference/index.html"),
		"Every kind with every field.")
	p.SeeAlso("outrider-example(1)", "outrider-mesh-check(1)", "outrider-mesh-explain(1)",
		"outrider-proxy-routes(1)", "outrider.toml(5)", "outriderd(8)")
	return p.String()
}

// withoutHeader returns the text of a file without the comments at its beginning.
func withoutHeader(text string) string {
	for strings.HasPrefix(text, "#") {
		_, text, _ = strings.Cut(text, "\n")
	}
	return text
}

func lowerFirst(s string) string {
	if s[1] >= 'A' && s[1] <= 'Z' {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}
