package config

import (
	"net"
	"slices"
	"strconv"
)

// Envoy's ports for captured traffic.
const (
	outboundPort = 15001
	inboundPort  = 15006
)

// listeners rejects keys that configure overlapping listeners.
func (x *crossCheck) listeners() {
	all := x.listening()
	for i, l := range all {
		for _, earlier := range all[:i] {
			if l.ConflictsWith(earlier) {
				x.refuse([]string{l.Key, earlier.Key}, "use different ports",
					"%s is %s, and %s is %s, which conflict", l.Key, l.Description(), earlier.Key,
					earlier.Description())
			}
		}
	}
}

// listening returns the TCP addresses that keys configure for the agent and Envoy.
func (c *Config) listening() []HostClaim {
	const loopback = "127.0.0.1"
	envoys := []string{"status.ready_port", "telemetry.prometheus_address", "capture.mode"}
	var all []HostClaim
	add := func(key, host string, port int) {
		if port > 0 {
			all = append(all, HostClaim{Key: key, Host: host, Port: port,
				Envoy: slices.Contains(envoys, key)})
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
	if len(c.Discovery.Addresses) > 0 {
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
