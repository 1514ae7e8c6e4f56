package config

import (
	"net"
	"net/netip"
	"strconv"
)

// Envoy's ports for captured traffic.
const (
	outboundPort = 15001
	inboundPort  = 15006
)

// listener is a TCP port that a key configures.
type listener struct {
	key  string
	host string // "" = all addresses, of both families
	port int
}

// text describes the listener: "port 15090 of 0.0.0.0".
func (l listener) text() string {
	if l.host == "" {
		return "port " + strconv.Itoa(l.port) + " of all addresses"
	}
	return "port " + strconv.Itoa(l.port) + " of " + l.host
}

// overlaps reports whether the two listeners cannot be bound at the same time.
func (l listener) overlaps(other listener) bool {
	if l.port != other.port {
		return false
	}
	a, b := l.addresses(), other.addresses()
	for _, one := range a {
		for _, two := range b {
			sameFamily := one.Is4() == two.Is4()
			if one == two || sameFamily && (one.IsUnspecified() || two.IsUnspecified()) ||
				// :: also accepts IPv4
				one == netip.IPv6Unspecified() || two == netip.IPv6Unspecified() {
				return true
			}
		}
	}
	return false
}

func (l listener) addresses() []netip.Addr {
	switch l.host {
	case "":
		return []netip.Addr{netip.IPv6Unspecified()}
	case "localhost":
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	}
	address, err := netip.ParseAddr(l.host)
	if err != nil {
		return nil
	}
	return []netip.Addr{address.Unmap()}
}

// listeners rejects keys that configure overlapping listeners.
func (x *crossCheck) listeners() {
	all := x.listening()
	for i, l := range all {
		for _, earlier := range all[:i] {
			if l.overlaps(earlier) {
				x.refuse([]string{l.key, earlier.key}, "use different ports",
					"%s is %s, and %s is %s, which conflict", l.key, l.text(), earlier.key,
					earlier.text())
			}
		}
	}
}

func (c *Config) listening() []listener {
	const loopback = "127.0.0.1"
	var all []listener
	add := func(key, host string, port int) {
		if port > 0 {
			all = append(all, listener{key, host, port})
		}
	}
	address := func(key, value string) {
		if host, port, ok := splitAddress(value); ok {
			add(key, host, port)
		}
	}
	add("envoy.admin_port", loopback, c.Envoy.AdminPort)
	address("status.address", c.Status.Address)
	// the listeners of a custom bootstrap are unknown
	if c.Envoy.Enabled && c.Envoy.CustomConfigFile == "" {
		address("status.ready_port", c.Status.ReadyAddress())
		address("telemetry.prometheus_address", c.Telemetry.PrometheusAddress)
	}
	if c.Discovery.Address != "" {
		address("discovery.debug_address", c.Discovery.DebugAddress)
	}
	address("dns.listen", c.DNS.Listen)
	add("sts.port", loopback, c.STS.Port)
	if c.Capture.Mode != "none" {
		add("capture.mode", "", outboundPort)
		add("capture.mode", "", inboundPort)
	}
	return all
}

// ReadyAddress returns host:port of Envoy's readiness listener, or "" if it is disabled. The host
// is that of status.address, or 127.0.0.1 if that is off.
func (s Status) ReadyAddress() string {
	if s.ReadyPort == 0 {
		return ""
	}
	host, _, ok := splitAddress(s.Address)
	if !ok || host == "localhost" { // Envoy listens on addresses only
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, strconv.Itoa(s.ReadyPort))
}
