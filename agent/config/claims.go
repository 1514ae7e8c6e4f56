package config

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Claim is something of which a host has one: an address to listen on, a folder, a socket, Envoy's base id.
type Claim struct {
	Key   string `json:"key"`             // that asks for it
	Host  string `json:"host,omitempty"`  // with Port; "" = all addresses, of both families
	Port  int    `json:"port,omitempty"`  // TCP; 0 = Name counts
	Name  string `json:"name,omitempty"`  // a path, or "base id 7"
	Envoy bool   `json:"envoy,omitempty"` // Envoy listens there, and not the agent
}

// Text says what is claimed: "port 15090 of 0.0.0.0".
func (c Claim) Text() string {
	if c.Port == 0 {
		return c.Name
	}
	return c.listener().text()
}

// Setting is the key as a file has it: "[envoy] admin_port".
func (c Claim) Setting() string {
	table, key, _ := strings.Cut(c.Key, ".")
	return fmt.Sprintf("[%s] %s", table, key)
}

// Clashes tells whether two agents of one host cannot both have what they claim.
func (c Claim) Clashes(other Claim) bool {
	if c.Port == 0 || other.Port == 0 {
		return c.Port == other.Port && c.Name == other.Name
	}
	return c.listener().overlaps(other.listener())
}

func (c Claim) listener() listener { return listener{c.Key, c.Host, c.Port} }

// Claims are what no other agent of the host can have. The runtime folder is not among them: a lock in it makes an agent its only
// one. What a bootstrap of the user's own listens on is not known here.
func (c *Config) Claims() []Claim {
	var claims []Claim
	for _, l := range c.listening() {
		envoys := l.key == "status.ready_port" || l.key == "telemetry.prometheus_address" || l.key == "capture.mode"
		claims = append(claims, Claim{Key: l.key, Host: l.host, Port: l.port, Envoy: envoys})
	}
	for _, path := range []struct{ key, path string }{
		{"paths.state_dir", c.Paths.StateDir}, {"envoy.config_dir", c.Envoy.ConfigDir}, {"xds.socket", c.XDS.Socket}, {"sds.socket", c.SDS.Socket},
		{"xds.grpc_bootstrap_file", c.XDS.GRPCBootstrapFile}, {"identity.output_dir", c.Identity.OutputDir},
	} {
		if path.path != "" {
			claims = append(claims, Claim{Key: path.key, Name: filepath.Clean(path.path)})
		}
	}
	if c.Envoy.BaseID != 0 {
		claims = append(claims, Claim{Key: "envoy.base_id", Name: fmt.Sprint("base id ", c.Envoy.BaseID)})
	}
	return claims
}

// hostAgent is the main file, without .toml, of the agent that is no instance.
const hostAgent = "outrider"

// Instances are the agents that have a configuration in a folder ("" = /etc/outrider), by name; "" is the one that is no instance.
func Instances(directory string) ([]string, error) {
	entries, err := os.ReadDir(cmp.Or(directory, defaultDirectory))
	if err != nil {
		return nil, fmt.Errorf("look for other instances: %w", err)
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

// RuntimeDir is where an instance has its runtime folder unless its configuration says otherwise.
func RuntimeDir(instance string) string { return filepath.Join(defaultRuntime, instance) }
