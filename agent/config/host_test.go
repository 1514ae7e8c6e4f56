package config

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestResolve(t *testing.T) {
	addresses := func(texts ...string) []netip.Addr {
		var all []netip.Addr
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	loopback := Interface{"lo", true, addresses("127.0.0.1", "::1")}
	for _, test := range []struct {
		name       string
		node       string
		interfaces []Interface
		want       string
	}{
		{"first global address", ``, []Interface{loopback,
			{"eth0", true, addresses("fe80::1%eth0", "169.254.1.1", "10.0.0.5", "10.0.0.6")}},
			"sidecar~10.0.0.5~vm.default~default.svc.cluster.local"},
		{"IPv6 alone", ``,
			[]Interface{loopback, {"eth0", true, addresses("fe80::1", "2001:db8::5")}},
			"sidecar~2001:db8::5~vm.default~default.svc.cluster.local"},
		{"bridges come last", ``, []Interface{loopback, {"docker0", true, addresses("172.17.0.1")},
			{"br-1234", true, addresses("172.18.0.1")}, {"ens3", true, addresses("192.0.2.7")}},
			"sidecar~192.0.2.7~vm.default~default.svc.cluster.local"},
		{"only bridges", ``, []Interface{loopback, {"docker0", true, addresses("172.17.0.1")},
			{"cni0", true, addresses("10.1.0.1")}},
			"sidecar~172.17.0.1~vm.default~default.svc.cluster.local"},
		{"what is down does not count", ``, []Interface{{"eth0", false, addresses("10.0.0.5")},
			{"eth1", true, addresses("10.0.0.6")}},
			"sidecar~10.0.0.6~vm.default~default.svc.cluster.local"},
		{"no network", ``, []Interface{loopback},
			"sidecar~127.0.0.1~vm.default~default.svc.cluster.local"},
		{"Consul", "node.service_registry = \"Consul\"\nnode.namespace = \"web\"",
			[]Interface{loopback},
			"sidecar~127.0.0.1~vm.web~service.consul"},
		{"Mock", "node.service_registry = \"Mock\"\nnode.type = \"router\"", []Interface{loopback},
			"router~127.0.0.1~vm.default~"},
		{"as said", "node = { id = \"a.b\", ip = \"192.0.2.1\", domain = \"mesh.example\" }", nil,
			"sidecar~192.0.2.1~a.b~mesh.example"},
	} {
		t.Run(test.name, func(t *testing.T) {
			host := Host{func() (string, error) { return "vm", nil },
				func() ([]Interface, error) { return test.interfaces, nil }}
			node, err := of(t, test.node).Config.Node.WithHostDefaults(host)
			if err != nil {
				t.Fatal(err)
			}
			if got := node.ServiceNode(); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestResolve_DualStack(t *testing.T) {
	all := func(texts ...string) (found []netip.Addr) {
		for _, text := range texts {
			found = append(found, netip.MustParseAddr(text))
		}
		return found
	}
	for _, test := range []struct {
		node       string
		interfaces []Interface
		want       string
	}{
		{"", []Interface{{"eth0", true, all("10.0.0.5", "10.0.0.6", "fe80::1", "2001:db8::5",
			"2001:db8::6")}}, "10.0.0.5 [2001:db8::5]"},
		{"", []Interface{{"eth0", true, all("2001:db8::5")}, {"eth1", true, all("10.0.0.5")}},
			"2001:db8::5 [10.0.0.5]"},
		{"", []Interface{{"eth0", true, all("2001:db8::5")}, {"docker0", true, all("172.17.0.1")}},
			"2001:db8::5 []"},
		{"", []Interface{{"docker0", true, all("172.17.0.1")}}, "172.17.0.1 []"},
		{`node.extra_ips = ["10.0.0.9"]`, []Interface{{"eth0", true,
			all("10.0.0.5", "2001:db8::5")}}, "10.0.0.5 [10.0.0.9]"},
		{`node.ip = "10.0.0.6"`, []Interface{{"eth0", true, all("10.0.0.5", "2001:db8::5")}},
			"10.0.0.6 []"},
	} {
		node, err := of(t, test.node).Config.Node.WithHostDefaults(Host{
			func() (string, error) { return "vm", nil },
			func() ([]Interface, error) { return test.interfaces, nil }})
		if got := fmt.Sprint(node.IP, " ", node.ExtraIPs); err != nil || got != test.want {
			t.Errorf("%+v: %s, %v; want %s", test.interfaces, got, err, test.want)
		}
	}
}

func TestResolveTellsWhatItTried(t *testing.T) {
	fail := errors.New("no luck")
	node := of(t, "").Config.Node
	for want, host := range map[string]Host{
		"find the host's name for node.id: no luck": {func() (string, error) { return "", fail },
			nil},
		"find the host's addresses for node.ip: no luck": {func() (string,
			error) {
			return "vm", nil
		},
			func() ([]Interface, error) { return nil, fail }},
	} {
		if _, err := node.WithHostDefaults(host); err == nil || err.Error() != want ||
			!errors.Is(err, fail) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestThisHost(t *testing.T) {
	node, err := of(t, "").Config.Node.WithHostDefaults(ThisHost())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := netip.ParseAddr(node.IP); err != nil || !strings.HasSuffix(node.ID, ".default") {
		t.Errorf("%s: %v", node.ServiceNode(), err)
	}
}
