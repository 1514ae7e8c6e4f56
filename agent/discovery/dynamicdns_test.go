package discovery_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"outrider.org/outrider/scripts/parts"
)

// resolvedAddress is the address of hosts that the DNS server of TestDynamicDNS knows. Connections
// to it are not captured.
const resolvedAddress = "10.7.0.1"

// linkAddress is a link-local address, such as that of a cloud's metadata service.
const linkAddress = "169.254.7.1"

// TestDynamicDNS runs the cases in testdata/conformance/dynamic with a sidecar, beside a DNS server
// that resolves the hosts in records.
func TestDynamicDNS(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	redirect(t)
	serveNames(t)
	s := newSuite(t)
	s.resolved(t)
	for _, c := range s.cases(t, "dynamic") {
		t.Run(c.name, func(t *testing.T) { alone(t, c, s) })
	}
}

// TestDynamicDNS_AnswersOfIstiodAreTheSame translates the cases with a real istiod, and sends the
// requests that must reach a backend. It omits requests that Outrider refuses: with istiod's
// configuration, Envoy forwards a request for a loopback address to itself in an endless loop, and
// to any port that the request names.
func TestDynamicDNS_AnswersOfIstiodAreTheSame(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	serveNames(t)
	s := newSuite(t)
	s.resolved(t)
	for _, c := range s.cases(t, "dynamic") {
		if c.node != "sidecar" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			directory := t.TempDir()
			write(t, filepath.Join(directory, c.name+".yaml"), inNamespace(t, c.mesh, "shop"))
			admin := filepath.Join(parts.ShortDir(t), "admin.sock")
			e := startEnvoyOn(t, admin, strings.Replace(fmt.Sprintf(bootstrap, c.node, admin,
				startIstiod(t, directory, "enableAutoMtls: false\n"+c.meshConfig),
				fmt.Sprintf(secretsCluster, startSecrets(t, agentSecrets{}))), "~127.0.0.1~",
				"~10.255.0.1~", 1))
			e.listens(t)
			for _, x := range c.exchanges {
				// istiod does not resolve the server name (SNI) of a connection that a
				// VirtualService routes
				if strings.HasPrefix(x.expect[0], "backend ") &&
					!strings.Contains(x.ask[0], "https://a.routed.test") {
					x.must(t, c.port)
				}
			}
		})
	}
}

// resolved runs the backends $NAMED and $NAMEDTLS (behind TLS) at resolvedAddress, and $LINK at
// linkAddress.
func (s *suite) resolved(t *testing.T) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(s.variables["CERT"], s.variables["KEY"])
	if err != nil {
		t.Fatal(err)
	}
	for name, address := range map[string]string{"named": resolvedAddress,
		"namedtls": resolvedAddress, "link": linkAddress} {
		addAddress(t, address)
		listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
		if err != nil {
			t.Fatal(err)
		}
		if name == "namedtls" {
			listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{pair},
				ClientAuth: tls.RequestClientCert})
		}
		b := &backend{name: name}
		s.variables[strings.ToUpper(name)] = strconv.Itoa(run(t, b.server(), listener))
	}
}

func addAddress(t *testing.T, address string) {
	t.Helper()
	bits := strconv.Itoa(netip.MustParseAddr(address).BitLen())
	if said, err := exec.Command("ip", "address", "replace", address+"/"+bits, "dev",
		"lo").CombinedOutput(); err != nil {
		t.Fatalf("ip: %v: %s", err, said)
	}
}

// serveNames runs a DNS server at the address of each DNS server of the host until the test ends.
// These addresses exist in the network namespace of the test only.
func serveNames(t *testing.T) {
	t.Helper()
	servers, err := dns.ClientConfigFromFile("/etc/resolv.conf")
	if err != nil || len(servers.Servers) == 0 {
		servers = &dns.ClientConfig{Servers: []string{"127.0.0.1"}}
	}
	for _, address := range servers.Servers {
		if !netip.MustParseAddr(address).IsLoopback() {
			addAddress(t, address)
		}
		started := make(chan struct{})
		server := &dns.Server{Addr: net.JoinHostPort(address, "53"), Net: "udp",
			Handler: dns.HandlerFunc(answerName), NotifyStartedFunc: func() { close(started) }}
		ended := make(chan error, 1)
		go func() { ended <- server.ListenAndServe() }()
		select {
		case <-started:
		case err := <-ended:
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Shutdown(); <-ended })
	}
}

// records are the DNS records of names by their first label.
var records = map[string][]string{
	"a": {"A " + resolvedAddress}, "b": {"A " + resolvedAddress}, "wrong": {"A " + resolvedAddress},
	"link":     {"A " + linkAddress},
	"loopback": {"A 127.0.0.1"}, "loopback6": {"AAAA ::1"}, "any": {"A 0.0.0.0"},
	"any6": {"AAAA ::"}, "mapped": {"AAAA ::ffff:127.0.0.1"}, "nat64": {"AAAA 64:ff9b::7f00:1"},
	"pair": {"A " + resolvedAddress, "A 127.0.0.1"},
	// the first address cannot be reached
	"both": {"A 10.7.0.2", "A 127.0.0.1"}, "bothany": {"A 10.7.0.2", "A 0.0.0.0"},
	"both6": {"AAAA 2001:db8::1", "AAAA ::1"}, "bothmapped": {"AAAA 2001:db8::1",
		"AAAA ::ffff:127.0.0.1"},
}

func answerName(w dns.ResponseWriter, query *dns.Msg) {
	answer := (&dns.Msg{}).SetReply(query)
	question := query.Question[0]
	label, _, _ := strings.Cut(strings.ToLower(question.Name), ".")
	found := records[label]
	if found == nil {
		answer.Rcode = dns.RcodeNameError
	}
	for _, text := range found {
		record, _ := dns.NewRR(question.Name + " 60 IN " + text)
		if record.Header().Rrtype == question.Qtype {
			answer.Answer = append(answer.Answer, record)
		}
	}
	_ = w.WriteMsg(answer)
}
