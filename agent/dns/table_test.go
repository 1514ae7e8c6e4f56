package dns

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

func TestTable_Answers(t *testing.T) {
	upstream := startResolver(t)
	r := start(t, upstream.address)
	r.SetNames(meshNames())
	const reviews = "reviews.shop.svc.cluster.local."
	for name, test := range map[string]struct {
		name string
		kind uint16
		want string
	}{
		"full name": {reviews, dns.TypeA, "NOERROR aa; " + reviews + " A 10.96.0.1"},
		"IPv6":      {reviews, dns.TypeAAAA, "NOERROR aa; " + reviews + " AAAA fd00::1"},
		"case of the client": {"PAYMENTS.example.COM.", dns.TypeA,
			"NOERROR aa; PAYMENTS.example.COM. A 240.240.0.1"},
		"own namespace":   {"reviews.", dns.TypeA, "NOERROR aa; reviews. A 10.96.0.1"},
		"with namespace":  {"db.data.", dns.TypeA, "NOERROR aa; db.data. A 10.96.0.2"},
		"with svc":        {"db.data.svc.", dns.TypeA, "NOERROR aa; db.data.svc. A 10.96.0.2"},
		"other namespace": {"db.", dns.TypeA, "NXDOMAIN"},
		"no record of family": {"db.data.svc.cluster.local.", dns.TypeAAAA,
			"NOERROR aa"},
		"other mesh domain": {"db.data.svc.other.mesh.", dns.TypeA,
			"NOERROR aa; db.data.svc.other.mesh. A 10.97.0.2"},
		"wildcard": {"a.b.wild.example.", dns.TypeA,
			"NOERROR aa; a.b.wild.example. A 240.240.0.2"},
		"wildcard base": {"wild.example.", dns.TypeA, "NXDOMAIN"},
		"search domain": {"payments.example.com.corp.example.", dns.TypeA,
			"NOERROR aa; payments.example.com.corp.example. CNAME payments.example.com.; " +
				"payments.example.com. A 240.240.0.1"},
		"reverse": {"1.0.96.10.in-addr.arpa.", dns.TypePTR,
			"NOERROR aa; 1.0.96.10.in-addr.arpa. PTR " + reviews},
		"reverse of another": {"9.9.9.9.in-addr.arpa.", dns.TypePTR, "NXDOMAIN"},
		"service": {"_http._tcp." + reviews, dns.TypeSRV,
			"NOERROR aa; _http._tcp." + reviews + " SRV 0 1 9080 " + reviews},
		"service by number": {"_9080._tcp." + reviews, dns.TypeSRV,
			"NOERROR aa; _9080._tcp." + reviews + " SRV 0 1 9080 " + reviews},
		"unknown port":     {"_smtp._tcp." + reviews, dns.TypeSRV, "NXDOMAIN"},
		"outside the mesh": {"a.example.org.", dns.TypeA, found},
		"other type": {"old.example.org.", dns.TypeMX,
			"NOERROR; old.example.org. MX 10 mail.example.org."},
		"other type, name unknown":  {reviews, dns.TypeTXT, "NOERROR"}, // not NXDOMAIN: it has addresses
		"unknown below the cluster": {"x.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, network := range []string{"udp", "udp", "tcp"} { // the second from a cache
				got := summary(r.over(network, test.name, test.kind))
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("%s: %s", network, diff)
				}
			}
		})
	}
}

// The test uses Go's resolver as a real client, with EDNS and search domains.
func TestTable_GoResolver(t *testing.T) {
	r := start(t)
	r.SetNames(meshNames())
	client := &net.Resolver{PreferGo: true,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, r.address)
		}}
	hosts, err := client.LookupHost(t.Context(), "reviews.shop.svc.cluster.local")
	if slices.Sort(hosts); err != nil || !slices.Equal(hosts, []string{"10.96.0.1", "fd00::1"}) {
		t.Errorf("LookupHost: %v, %v", hosts, err)
	}
	_, services, err := client.LookupSRV(t.Context(), "http", "tcp", "reviews.shop.svc.cluster.local")
	if err != nil || len(services) != 1 || services[0].Port != 9080 {
		t.Errorf("LookupSRV: %v, %v", services, err)
	}
	names, err := client.LookupAddr(t.Context(), "fd00::1")
	if err != nil || !slices.Equal(names, []string{"reviews.shop.svc.cluster.local."}) {
		t.Errorf("LookupAddr: %v, %v", names, err)
	}
}

func TestTable_RotatesAddresses(t *testing.T) {
	r := start(t)
	for _, count := range []int{3, 200} { // 200 addresses are too many for the cache
		var all []netip.Addr
		for i := range count {
			all = append(all, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
		}
		r.SetNames([]Name{{Host: "many.example", Addresses: all}})
		first := map[string]int{}
		for range 30 {
			m := r.over("tcp", "many.example.", dns.TypeA)
			if len(m.Answer) != count {
				t.Fatalf("got %s", summary(m))
			}
			first[m.Answer[0].(*dns.A).A.String()]++
		}
		if len(first) < min(count, 8) {
			t.Errorf("first addresses: %v", first)
		}
	}
}

func TestTable_ReplacesForwardedAnswers(t *testing.T) {
	upstream := startResolver(t)
	r := start(t, upstream.address)
	r.SetNames(nil)
	for _, want := range []string{"NOERROR; a.example.org. A 198.51.100.1",
		"NOERROR aa; a.example.org. A 240.240.0.9", "NOERROR; a.example.org. A 198.51.100.1"} {
		if got := summary(r.query("a.example.org.", dns.TypeA)); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
		if r.Stats().NameTableAnswers == 0 {
			r.SetNames([]Name{{Host: "a.example.org", Addresses: addresses("240.240.0.9")}})
		} else {
			r.SetNames(nil)
		}
	}
}
