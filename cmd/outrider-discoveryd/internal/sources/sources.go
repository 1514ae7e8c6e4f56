// Package sources creates the configuration sources and service registries of outrider-discoveryd.
package sources

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/consul"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/kubernetes"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/mcp"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/memory"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
)

// New returns the configuration sources and service registries, which deliver to sink. It omits
// sources of type files, which the discovery server reads itself.
func New(c *config.Discoveryd, sink source.Sink,
	logOf func(part string) *slog.Logger) (all []source.Source, err error) {
	for _, s := range c.Sources {
		switch s.Type {
		case "files":
		case "memory":
			all = append(all, memory.New(s, false, sink, logOf(s.Name)))
		case "mcp":
			one, err := mcp.New(overXDS(s, false, sink, logOf(s.Name)))
			if err != nil {
				return nil, err
			}
			all = append(all, one)
		case "kubernetes":
			one, err := kubernetes.NewSource(kubernetes.Options{Name: s.Name,
				Kubeconfig: s.Kubeconfig, Namespaces: s.Namespaces,
				WriteStatus: s.WriteStatus}, sink)
			if err != nil {
				return nil, err
			}
			all = append(all, one)
		default:
			return nil, fmt.Errorf("this version does not support sources of type %s", s.Type)
		}
	}
	for _, s := range c.Registries {
		switch s.Type {
		case "memory":
			all = append(all, memory.New(s, true, sink, logOf(s.Name)))
		case "mcp":
			one, err := mcp.New(overXDS(s, true, sink, logOf(s.Name)))
			if err != nil {
				return nil, err
			}
			all = append(all, one)
		case "consul":
			one, err := consul.New(consul.Options{Name: s.Name, Address: s.Address, CAFile: s.CAFile,
				TokenFile: s.TokenFile, Datacenters: s.Datacenters, Namespace: s.Namespace,
				Domain: s.Domain, Sink: sink, Logger: logOf(s.Name)})
			if err != nil {
				return nil, err
			}
			all = append(all, one)
		case "kubernetes":
			one, err := kubernetes.NewRegistry(kubernetes.Options{Name: s.Name,
				Kubeconfig: s.Kubeconfig, Namespaces: s.Namespaces, Domain: c.Domain}, sink)
			if err != nil {
				return nil, err
			}
			all = append(all, one)
		default:
			return nil, fmt.Errorf("this version does not support registries of type %s", s.Type)
		}
	}
	return all, nil
}

// overXDS returns the options of a source of type mcp. As in outriderd with the default of
// [discovery] auth, the connection is plaintext on port 15010, and to loopback addresses unless
// ca_file or cert_file is set.
func overXDS(s *config.Source, services bool, sink source.Sink, log *slog.Logger) mcp.Options {
	// Errors are ignored: mcp.New checks the address, and ip is only valid if the host is no name.
	host, port, _ := net.SplitHostPort(s.Address)
	ip, _ := netip.ParseAddr(host)
	return mcp.Options{Name: s.Name, Address: s.Address, CAFile: s.CAFile, TokenFile: s.TokenFile,
		CertFile: s.CertFile, KeyFile: s.KeyFile, ServicesOnly: services, Sink: sink, Logger: log,
		Plaintext: port == "15010" || ip.IsLoopback() && s.CAFile+s.CertFile == ""}
}
