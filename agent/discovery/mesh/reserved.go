package mesh

import "net/netip"

// ReservedAddress is an address of the host on which the agent or Envoy's bootstrap has a listener.
type ReservedAddress struct {
	Address string // IP address; "", 0.0.0.0 and :: mean all addresses of both families
	Port    uint32
	// key of the configuration that reserves the address, such as "[envoy] admin_port"
	Owner    string
	IsEnvoys bool // the address is that of a listener in Envoy's bootstrap
}

// ReservedBy returns the configuration key that reserves an address and port, or "". If captured is
// set, the address is that of a listener for captured connections, which binds no socket. It then
// conflicts only if it and the address of a listener in the bootstrap are unspecified, because
// Envoy refuses two listeners with one address.
func (m *Config) ReservedBy(address string, port uint32, captured bool) string {
	for _, t := range m.ReservedAddresses {
		switch {
		case t.Port != port:
		case captured && t.IsEnvoys && isAll(t.Address) && isAll(address):
			return t.Owner
		case !captured && (isAll(t.Address) || isAll(address) || SameAddress(t.Address, address)):
			return t.Owner
		}
	}
	return ""
}

func isAll(address string) bool { return address == "" || IsUnspecified(address) }

// IsUnspecified reports whether address is 0.0.0.0 or :: in any spelling.
func IsUnspecified(address string) bool {
	parsed, err := netip.ParseAddr(address)
	return err == nil && parsed.IsUnspecified()
}

// SameAddress reports whether two texts denote the same IP address: IPv6 addresses have many
// spellings.
func SameAddress(a, b string) bool {
	x, err := netip.ParseAddr(a)
	y, other := netip.ParseAddr(b)
	return err == nil && other == nil && x == y
}
