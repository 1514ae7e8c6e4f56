package dns

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// Name is a host of the mesh.
type Name struct {
	Host      string // without final dot; *.SUFFIX matches all names below SUFFIX
	Addresses []netip.Addr
	Ports     []Port // for answers to SRV queries
	// ShortName and Namespace form the short names of a Kubernetes host, as in Istio:
	// ShortName.Namespace, ShortName.Namespace.svc and, in the node's namespace, ShortName.
	// ShortName is "" for other hosts.
	ShortName, Namespace string
}

// Port is a named port of a host.
type Port struct {
	Name   string
	Number uint16
}

// Node has the properties of the proxy's node that the table uses.
type Node struct{ Namespace, Domain string }

// ttl is the TTL, in seconds, of all answers from the table, as in Istio.
const ttl = 30

// table answers questions for names of the mesh. It is immutable.
type table struct {
	hosts   map[string]*host // by name with final dot, lower case
	reverse map[string][]string
	search  string   // first search domain of the host with final dot; "" = none
	answers *cache   // by query
	domains []string // domains that systemd-resolved routes to this server
}

// host is an entry of the table.
type host struct {
	addresses []netip.Addr
	ports     []Port
}

// newTable returns a table of names. The first of two names for the same host has precedence.
func newTable(names []Name, node Node, search string) *table {
	t := &table{hosts: make(map[string]*host, len(names)), reverse: map[string][]string{},
		answers: newCache(), domains: routed(names)}
	if search != "" {
		t.search = dns.CanonicalName(search)
	}
	for _, n := range names {
		h := &host{n.Addresses, n.Ports}
		full := dns.CanonicalName(n.Host)
		if t.add(full, h) && !strings.HasPrefix(full, "*") {
			for _, address := range n.Addresses {
				if arpa, err := dns.ReverseAddr(address.String()); err == nil {
					t.reverse[arpa] = append(t.reverse[arpa], full)
				}
			}
		}
	}
	for _, n := range names { // in a second pass, because full names have precedence
		for _, short := range n.shortNames(node) {
			t.add(dns.CanonicalName(short), t.hosts[dns.CanonicalName(n.Host)])
		}
	}
	for _, hosts := range t.reverse {
		slices.Sort(hosts)
	}
	return t
}

// add reports whether the name was free.
func (t *table) add(name string, h *host) bool {
	if t.hosts[name] != nil {
		return false
	}
	t.hosts[name] = h
	return true
}

// shortNames returns the short names of a host for clients on a node, without the node's search
// domain.
func (n Name) shortNames(node Node) []string {
	domain := strings.TrimPrefix(node.Domain, node.Namespace+".") // svc.cluster.local
	if n.ShortName == "" || domain == "" || !strings.HasSuffix(n.Host, "."+domain) {
		return nil
	}
	first, _, _ := strings.Cut(domain, ".")
	names := []string{n.ShortName + "." + n.Namespace,
		n.ShortName + "." + n.Namespace + "." + first}
	if n.Namespace == node.Namespace {
		names = append(names, n.ShortName)
	}
	return names
}

// find returns the entry of a canonical name, else that of the longest matching wildcard.
func (t *table) find(name string) *host {
	if h := t.hosts[name]; h != nil {
		return h
	}
	for rest := name; ; {
		_, after, ok := strings.Cut(rest, ".")
		if !ok || after == "" {
			return nil
		}
		if h := t.hosts["*."+after]; h != nil {
			return h
		}
		rest = after
	}
}

// knows reports whether the table has a name. If so, no upstream may answer that the name does not
// exist.
func (t *table) knows(name string) bool { return t.find(dns.CanonicalName(name)) != nil }

// answer returns the response to a query, nil if the table has none.
func (t *table) answer(query *dns.Msg) *dns.Msg {
	q := query.Question[0]
	name := dns.CanonicalName(q.Name)
	reply := new(dns.Msg).SetReply(query)
	reply.Authoritative, reply.RecursionAvailable = true, true
	switch q.Qtype {
	case dns.TypeA, dns.TypeAAAA:
		h := t.find(name)
		owner := q.Name
		if base, ok := strings.CutSuffix(name, "."+t.search); h == nil && ok && t.search != "" {
			if h = t.find(base + "."); h != nil {
				owner = base + "."
				reply.Answer = append(reply.Answer,
					&dns.CNAME{Hdr: header(q.Name, dns.TypeCNAME), Target: owner})
			}
		}
		if h == nil {
			return nil
		}
		reply.Answer = append(reply.Answer, h.records(owner, q.Qtype)...)
	case dns.TypePTR:
		hosts := t.reverse[name]
		if hosts == nil {
			return nil
		}
		for _, host := range hosts {
			reply.Answer = append(reply.Answer,
				&dns.PTR{Hdr: header(q.Name, dns.TypePTR), Ptr: host})
		}
	case dns.TypeSRV:
		return t.service(reply, q.Name, name)
	default:
		return nil
	}
	return reply
}

// service answers an SRV question for _PORT._tcp.HOST, where PORT is a name or number. It returns
// nil if there is no such port.
func (t *table) service(reply *dns.Msg, question, name string) *dns.Msg {
	parts := strings.SplitN(name, ".", 3)
	if len(parts) < 3 || parts[1] != "_tcp" {
		return nil
	}
	h := t.find(parts[2])
	if h == nil {
		return nil
	}
	i := slices.IndexFunc(h.ports, func(p Port) bool {
		return parts[0] == "_"+strings.ToLower(p.Name) || parts[0] == "_"+strconv.Itoa(int(p.Number))
	})
	if i < 0 {
		return nil
	}
	reply.Answer = []dns.RR{&dns.SRV{Hdr: header(question, dns.TypeSRV), Weight: 1,
		Port: h.ports[i].Number, Target: parts[2]}}
	reply.Extra = append(h.records(parts[2], dns.TypeA), h.records(parts[2], dns.TypeAAAA)...)
	return reply
}

// records returns the addresses of one family.
func (h *host) records(owner string, family uint16) []dns.RR {
	var all []dns.RR
	for _, address := range h.addresses {
		switch {
		case family == dns.TypeA && address.Is4():
			all = append(all, &dns.A{Hdr: header(owner, family), A: net.IP(address.AsSlice())})
		case family == dns.TypeAAAA && address.Is6():
			all = append(all,
				&dns.AAAA{Hdr: header(owner, family), AAAA: net.IP(address.AsSlice())})
		}
	}
	return all
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}
