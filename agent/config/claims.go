package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// HostClaim is an exclusive resource of a host: a listening address, a directory, a socket or
// Envoy's base ID.
type HostClaim struct {
	Key   string `json:"key"`             // configuration key
	Host  string `json:"host,omitempty"`  // address of Port; "" = all addresses of both families
	Port  int    `json:"port,omitempty"`  // TCP; 0 = the claim is Name
	Name  string `json:"name,omitempty"`  // a path, or "base id 7"
	Envoy bool   `json:"envoy,omitempty"` // Envoy, not the agent, listens on Port
}

// Description describes the claim: "port 15090 of 0.0.0.0".
func (c HostClaim) Description() string {
	if c.Port == 0 {
		return c.Name
	}
	host := c.Host
	if host == "" {
		host = "all addresses"
	}
	return fmt.Sprintf("port %d of %s", c.Port, host)
}

// KeyWithTable returns the key with its table: "[envoy] admin_port".
func (c HostClaim) KeyWithTable() string {
	table, key, _ := strings.Cut(c.Key, ".")
	return fmt.Sprintf("[%s] %s", table, key)
}

// Fix returns the advice for two agents whose claims conflict.
func (c HostClaim) Fix() string {
	if strings.HasPrefix(c.Key, "capture.") {
		return `set capture.mode = "none" in one of the two`
	}
	return "give one of the two another"
}

// ConflictsWith reports whether two agents on one host cannot hold both claims.
func (c HostClaim) ConflictsWith(other HostClaim) bool {
	if c.Port == 0 || other.Port == 0 || c.Port != other.Port {
		return c.Port == other.Port && c.Name == other.Name
	}
	for _, one := range c.addresses() {
		for _, two := range other.addresses() {
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

func (c HostClaim) addresses() []netip.Addr {
	switch c.Host {
	case "":
		return []netip.Addr{netip.IPv6Unspecified()}
	case "localhost":
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	}
	address, err := netip.ParseAddr(c.Host)
	if err != nil {
		return nil
	}
	return []netip.Addr{address.Unmap()}
}

// Claims returns the ports, sockets, directories and base IDs that no other agent on this host can
// use. It omits the runtime directory, which a lock protects, and the listeners of a custom
// bootstrap, which are unknown.
func (c *Config) Claims() []HostClaim {
	claims := c.listening()
	for _, path := range []struct{ key, path string }{
		{"paths.state_dir", c.Paths.StateDir}, {"envoy.config_dir", c.Envoy.ConfigDir},
		{"xds.socket", c.XDS.Socket}, {"sds.socket", c.SDS.Socket},
		{"xds.grpc_bootstrap_file", c.XDS.GRPCBootstrapFile},
		{"identity.output_dir", c.Identity.OutputDir},
	} {
		if path.path != "" {
			claims = append(claims, HostClaim{Key: path.key, Name: filepath.Clean(path.path)})
		}
	}
	if c.Envoy.BaseID != 0 {
		claims = append(claims,
			HostClaim{Key: "envoy.base_id", Name: fmt.Sprint("base id ", c.Envoy.BaseID)})
	}
	return claims
}

// AgentDefinedEnvoyListeners returns the addresses of the listeners that Outrider adds to Envoy:
// for readiness and metrics.
func (c *Config) AgentDefinedEnvoyListeners() []netip.AddrPort {
	var all []netip.AddrPort
	for _, claim := range c.listening() {
		if claim.Envoy && claim.Key != "capture.mode" {
			for _, address := range claim.addresses() {
				all = append(all, netip.AddrPortFrom(address, uint16(claim.Port)))
			}
		}
	}
	return all
}

// hostAgent is the base name of the main file of the agent without an instance name.
const hostAgent = "outrider"

// Instances returns the names of the agents with a configuration in directory ("" = /etc/outrider),
// sorted. "" is the agent without an instance name.
func Instances(directory string) ([]string, error) {
	entries, err := os.ReadDir(cmp.Or(directory, defaultDirectory))
	if err != nil {
		return nil, fmt.Errorf("list the other instances: %w", err)
	}
	var names []string
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), ".toml")
		switch {
		case !ok || entry.IsDir():
		case name == hostAgent:
			names = append(names, "")
		case checkInstance(name) == nil:
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// RuntimeDir returns the default runtime directory of an instance.
func RuntimeDir(instance string) string { return filepath.Join(defaultRuntime, instance) }
