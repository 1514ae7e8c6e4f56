package mesh

import "net/netip"

// Taken is an address of the machine that somebody listens on who is no part of the mesh.
type Taken struct {
	Address string // an IP address; "", 0.0.0.0 and :: are all of both families
	Port    uint32
	By      string // in words: "[envoy] admin_port"
	Envoy   bool   // a listener of Envoy's bootstrap
}

// TakenBy is who has an address and port, "" if nobody. Nothing is bound for captured connections,
// so they share addresses with all but Envoy's own listeners on all addresses: it takes no two that
// are equal.
func (m *Config) TakenBy(address string, port uint32, captured bool) string {
	for _, t := range m.Taken {
		switch {
		case t.Port != port:
		case captured && t.Envoy && isAll(t.Address) && isAll(address):
			return t.By
		case !captured && (isAll(t.Address) || isAll(address) || SameAddress(t.Address, address)):
			return t.By
		}
	}
	return ""
}

func isAll(address string) bool { return address == "" || Unspecified(address) }

// Unspecified tells whether a text is 0.0.0.0 or ::, in whatever way it is written.
func Unspecified(address string) bool {
	parsed, err := netip.ParseAddr(address)
	return err == nil && parsed.IsUnspecified()
}

// SameAddress tells whether two texts are one address, which IPv6 lets be written in many ways.
func SameAddress(a, b string) bool {
	x, err := netip.ParseAddr(a)
	y, other := netip.ParseAddr(b)
	return err == nil && other == nil && x == y
}
