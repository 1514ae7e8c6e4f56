package blueprint

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/bootstrap"
)

// input returns the input of the bootstrap renderer.
func (m Builder) input(
	ctx context.Context, loaded *config.Loaded, node config.Node,
) (bootstrap.Input, config.Errors) {
	c := loaded.Config
	var errs config.Errors
	addresses, err := nodeAddresses(node)
	if err != nil {
		errs = append(errs, loaded.KeyError("node.ip", err.Error(), "write an IP address"))
	}
	input := bootstrap.Input{
		Node: bootstrap.Node{
			Type: node.Type, ID: node.ID, IPs: addresses, Namespace: node.Namespace,
			ServiceAccount: node.ServiceAccount, ServiceCluster: node.ServiceCluster,
			Domain: node.Domain, TrustDomain: node.TrustDomain, ClusterID: node.ClusterID,
			MeshID: node.MeshID, Network: node.Network, Locality: node.Locality,
			WorkloadGroup: node.WorkloadGroup, Labels: node.Labels, Metadata: node.Metadata,
			DisableInternalTelemetry: c.Telemetry.DisableInternalTelemetry,
			Identity:                 c.Identity.Provider != "none",
			IPv6:                     c.Capture.Mode != "none" && hasIPv6(),
			InterceptionMode:         strings.ToUpper(c.Capture.Mode),
			DNSCapture:               c.DNS.Listen != "",
		},
		Discovery:      bootstrap.Discovery{Socket: c.XDS.Socket, Delta: c.Discovery.Delta},
		ConnectTimeout: c.Envoy.ConnectTimeout,
		DNSRefreshRate: c.Envoy.DNSRefreshRate,
		MaxConnections: uint64(c.Envoy.MaxConnections),
		Prometheus:     c.Telemetry.PrometheusAddress,
		Stats: bootstrap.StatsSelection{All: c.Telemetry.Stats == "all",
			Prefixes: c.Telemetry.StatsPrefixes, Suffixes: c.Telemetry.StatsSuffixes,
			Regexps: c.Telemetry.StatsRegexps},
		OutlierLogPath: c.Envoy.OutlierLogPath,
		SystemRoots:    systemRoots(),
		Template: bootstrap.TemplateInput{
			ControlPlane: c.Envoy.ControlPlaneBootstrap, DiscoveryAddress: firstOf(c.Discovery.Addresses),
			DiscoveryRootCA: c.Discovery.RootCAFile, PilotIdentity: c.Discovery.PilotIdentity,
			MixerIdentity:    c.Discovery.MixerIdentity,
			ControlPlaneAuth: c.Discovery.Auth == "mtls",
			AdminPort:        c.Envoy.AdminPort, StatusPort: portOf(c.Status.Address),
			STSPort: c.STS.Port, Concurrency: c.Envoy.Concurrency,
			StatNameLength: c.Envoy.StatNameLength, ConfigDir: c.Envoy.ConfigDir,
			BinaryPath:    c.Envoy.Binary,
			DrainDuration: c.Envoy.DrainDuration, ParentShutdown: c.Envoy.ParentShutdownDuration,
		},
	}
	if c.Capture.Mode != "none" {
		input.MaxCapturedConnections = uint64(c.Capture.MaxConnections)
		// Envoy counts a captured outbound connection at the listener of its destination, not at
		// the listener that captured it. Outbound connections can therefore be limited only through
		// the number of all connections.
		input.MaxConnections = cmp.Or(input.MaxConnections, 2*input.MaxCapturedConnections)
	}
	// istiod expects this metadata; a change of it starts an epoch
	if len(c.Discovery.Addresses) > 0 {
		input.Node.ProxyConfig = map[string]any{"discoveryAddress": c.Discovery.Addresses[0]}
		if !c.Discovery.ProxyXDS {
			input.Discovery.Socket, input.Discovery.Upstream = "", upstream(c)
		}
	}
	// With this metadata, istiod treats the workload as unhealthy until the first health report.
	if c.ReportsHealth() {
		input.Node.ProxyConfig["readinessProbe"] = map[string]any{}
	}
	input.SDSSocket = c.SDS.Socket
	if c.Identity.Provider == "spire" {
		input.SDSSocket, input.CredentialSocket = c.Identity.SpireSocket, c.SDS.Socket
	}
	input.ExternalSDSSocket = c.Identity.CredentialsSDS
	if ready := c.Status.ReadyAddress(); ready != "" {
		input.Ready = bootstrap.ReadyListener{Address: ready, Backend: loopback(c.Status.Address)}
	}
	if c.Telemetry.StatsdUDPAddress != "" {
		address, err := m.ResolveAddress(ctx, c.Telemetry.StatsdUDPAddress)
		if err != nil {
			errs = append(errs, loaded.KeyError("telemetry.statsd_udp_address",
				"Envoy needs an IP address: "+err.Error(),
				"write an address, or a name that this host can resolve").WithCause(err))
		}
		input.StatsdAddress = address.String()
	}
	input.MetricsService = service(c.Telemetry.MetricsService, c.Telemetry.MetricsServiceTLS)
	input.AccessLogService = service(c.Telemetry.AccessLogService, c.Telemetry.AccessLogServiceTLS)
	var fault *config.Error
	if input.Tracing, fault = tracing(loaded); fault != nil {
		errs = append(errs, fault)
	}
	return input, errs
}

// upstream returns the xDS server to which Envoy connects itself ([discovery] proxy = false).
func upstream(c *config.Config) *bootstrap.Server {
	d, i := c.Discovery, c.Identity
	s := &bootstrap.Server{Address: d.Addresses[0], Keepalive: upstreamKeepalive}
	if !d.UsesTLS() {
		return s
	}
	s.TLS = bootstrap.TLS{Mode: bootstrap.TLSSimple, CAFile: cmp.Or(d.RootCAFile, i.RootCAFile),
		ServerName: d.ServerName}
	switch {
	case i.ProvCertDir != "":
		s.TLS.Mode = bootstrap.TLSMutual
		s.TLS.CertFile = filepath.Join(i.ProvCertDir, "cert-chain.pem")
		s.TLS.KeyFile = filepath.Join(i.ProvCertDir, "key.pem")
	case d.Auth == "mtls":
		s.TLS.Mode, s.TLS.CertificateFromSDS = bootstrap.TLSMutual, true
	}
	return s
}

// firstOf returns the first address of the upstream server, "" if there is none. Bootstrap
// templates support only one.
func firstOf(addresses config.Addresses) string {
	if len(addresses) == 0 {
		return ""
	}
	return addresses[0]
}

// upstreamKeepalive is Istio's default keep-alive time of connections to istiod.
const upstreamKeepalive = 300 * time.Second

// systemRoots returns the path of this system's CA bundle, or "".
func systemRoots() string {
	for _, path := range bootstrap.SystemRootCandidates() {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

func service(address string, tls config.TLSSettings) *bootstrap.Server {
	if address == "" {
		return nil
	}
	return &bootstrap.Server{Address: address, Keepalive: tls.TCPKeepalive, TLS: bootstrap.TLS{
		Mode: bootstrap.TLSMode(tls.Mode), CAFile: tls.CAFile, CertFile: tls.CertFile,
		KeyFile: tls.KeyFile, ServerName: tls.ServerName,
	}}
}

func tracing(loaded *config.Loaded) (*bootstrap.Tracing, *config.Error) {
	c := loaded.Config.Tracing
	if c.Provider == "" {
		return nil, nil
	}
	t := &bootstrap.Tracing{Provider: c.Provider, Sampling: c.Sampling,
		Service: bootstrap.Server{Address: c.Address}}
	if c.Secure {
		t.Service.TLS = bootstrap.TLS{Mode: bootstrap.TLSSimple, CAFile: c.CAFile}
	}
	if c.AccessTokenFile != "" {
		token, fault := readFile(loaded, "tracing.access_token_file", c.AccessTokenFile, maxToken)
		if fault != nil {
			return nil, fault
		}
		t.AccessToken = strings.TrimSpace(string(token))
	}
	return t, nil
}

// nodeAddresses returns the node's main address, followed by its other ones.
func nodeAddresses(node config.Node) ([]netip.Addr, error) {
	var addresses []netip.Addr
	for _, text := range append([]string{node.IP}, node.ExtraIPs...) {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("parse [node] ip and extra_ips: %w", err)
		}
		addresses = append(addresses, address)
	}
	return addresses, nil
}

// hasIPv6 reports whether the kernel supports IPv6. Without it Envoy refuses IPv6 listeners.
func hasIPv6() bool {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	return unix.Close(fd) == nil
}

// loopback returns the loopback address at which Envoy reaches a listener of the agent.
func loopback(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1" // a socket on [::] accepts IPv4, too
	}
	return net.JoinHostPort(host, port)
}

// portOf returns the port of an address, 0 if it is "".
func portOf(address string) int {
	_, port, _ := net.SplitHostPort(address)
	number, _ := strconv.Atoi(port)
	return number
}
