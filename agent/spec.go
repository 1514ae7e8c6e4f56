package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/keeper"
	"outrider.org/outrider/agent/watch"
	"outrider.org/outrider/bootstrap"
)

// specMaker turns a configuration into the Envoy it asks for.
type specMaker struct {
	keeper  func() keeper.Info                                                // of the keeper that runs now
	inspect func(ctx context.Context, path string) (*envoy.Binary, error)     // what the binary at a path is
	resolve func(ctx context.Context, address string) (netip.AddrPort, error) // of a name
	host    config.Host
	runner  envoy.Runner // where Envoy runs, and as whom
}

// spec reads everything an epoch is made of, so that the functions of the result need nothing more: what was read now is what
// is started, however long it waits for its turn.
func (m *specMaker) spec(ctx context.Context, loaded *config.Loaded) (*epoch.Spec, error) {
	c := loaded.Config
	path, err := envoy.Find(c.Envoy.Binary)
	if err != nil {
		return nil, &ExitError{Code: ExitNoEnvoy, Err: err}
	}
	binary, err := m.inspect(ctx, path)
	if err != nil {
		return nil, &ExitError{Code: ExitNoEnvoy, Err: err}
	}
	if err := m.checkWritable(ctx, c); err != nil {
		return nil, &ExitError{Code: ExitConfiguration, Err: err}
	}
	spec, err := m.made(ctx, c, binary)
	if err != nil {
		return nil, &ExitError{Code: ExitConfiguration, Err: err}
	}
	return spec, nil
}

// made is the spec of a binary that is known.
func (m *specMaker) made(ctx context.Context, c *config.Config, binary *envoy.Binary) (*epoch.Spec, error) {
	if c.Envoy.StatNameLength != defaultStatNameLength && !binary.KnowsStatNameLength() {
		return nil, fmt.Errorf("envoy.stat_name_length: Envoy %s has no --max-obj-name-len; remove the key", binary.Version)
	}
	node, err := c.Node.Resolve(m.host)
	if err != nil {
		return nil, err
	}
	render, err := m.renderer(ctx, c, node)
	if err != nil {
		return nil, err
	}
	info := m.keeper()
	command := commandLine(c, node, binary)
	launched := func(l epoch.Launch) envoy.CommandLine {
		line := command
		line.ConfigFile, line.Epoch, line.HotRestart = l.BootstrapPath, l.RestartEpoch, l.HotRestart
		line.Number = l.Number
		line.BaseID, line.SocketPath = info.BaseIDOf(l.Lineage), info.SocketPath
		return line
	}
	admin := func(l epoch.Launch) string { return adminAddress(info.Folder, l) }
	if c.Envoy.CustomConfigFile != "" || c.Envoy.TemplateFile != "" {
		// The file's own admin address counts; it is the same for every epoch.
		rendered, err := render(admin(epoch.Launch{}))
		if err != nil {
			return nil, err
		}
		network, address, err := bootstrap.AdminAddress(rendered)
		if err != nil {
			return nil, err
		}
		if network != "unix" || address != admin(epoch.Launch{}) {
			admin = func(epoch.Launch) string { return address }
		}
	}
	digest, err := m.digest(c, binary, render, launched)
	if err != nil {
		return nil, err
	}
	spec := &epoch.Spec{
		Hash:      digest,
		Bootstrap: func(l epoch.Launch) ([]byte, error) { return render(admin(l)) },
		Command: func(l epoch.Launch) (epoch.Command, error) {
			return epoch.Command{Path: binary.Path, Args: launched(l).Args(binary), Env: envoyEnvironment()}, nil
		},
		AdminAddress:      admin,
		HotRestartVersion: binary.HotRestartVersion,
		LiveTimeout:       c.Envoy.LiveTimeout,
		Drain:             c.Envoy.DrainDuration,
		ParentShutdown:    c.Envoy.ParentShutdownDuration,
	}
	if c.Reload.Validate {
		spec.Validation = func(l epoch.Launch) (epoch.Command, error) {
			return epoch.Command{Path: binary.Path, Args: launched(l).ValidateArgs(binary), Env: envoyEnvironment()}, nil
		}
	}
	return spec, nil
}

// defaultStatNameLength is [envoy] stat_name_length's default, which today's Envoy neither needs nor knows.
const defaultStatNameLength = 189

// envoyEnvironment is Envoy's environment: nothing of the agent's or the keeper's is its business.
func envoyEnvironment() []string { return []string{"PATH=/usr/bin:/bin"} }

// adminSocketPrefix begins the names of the epochs' own admin sockets (interfaces.md, "Files").
const adminSocketPrefix = "admin-"

// adminAddress is an epoch's own admin socket: one path per epoch, so that a closed interface is never mistaken for the next
// one's.
func adminAddress(folder string, l epoch.Launch) string {
	return filepath.Join(folder, adminSocketPrefix+strconv.Itoa(l.Number)+".sock")
}

// renderer returns what makes the bootstrap of an epoch whose admin interface listens at the given path.
func (m *specMaker) renderer(ctx context.Context, c *config.Config, node config.Node) (func(adminSocket string) ([]byte, error), error) {
	input, err := m.input(ctx, c, node)
	if err != nil {
		return nil, err
	}
	var custom, template, override []byte
	for _, file := range []struct {
		key, path string
		content   *[]byte
	}{
		{"envoy.custom_config_file", c.Envoy.CustomConfigFile, &custom},
		{"envoy.template_file", c.Envoy.TemplateFile, &template},
		{"envoy.bootstrap_override", c.Envoy.BootstrapOverride, &override},
	} {
		if file.path == "" {
			continue
		}
		if *file.content, err = os.ReadFile(file.path); err != nil {
			return nil, fmt.Errorf("%s: %w", file.key, err)
		}
	}
	return func(adminSocket string) ([]byte, error) {
		rendered, name, err := render(c, input, adminSocket, custom, template)
		if err != nil || c.Envoy.BootstrapOverride == "" {
			return rendered, err
		}
		return bootstrap.Override(rendered, name, c.Envoy.BootstrapOverride, override)
	}, nil
}

func render(c *config.Config, input bootstrap.Input, adminSocket string, custom, template []byte) (rendered []byte, name string, err error) {
	input.AdminSocket = adminSocket
	switch {
	case c.Envoy.CustomConfigFile != "":
		rendered, err = bootstrap.Custom(c.Envoy.CustomConfigFile, custom)
		return rendered, c.Envoy.CustomConfigFile, err
	case c.Envoy.TemplateFile != "":
		rendered, err = bootstrap.Template(c.Envoy.TemplateFile, template, input)
		return rendered, c.Envoy.TemplateFile, err
	default:
		built, err := bootstrap.Build(input)
		if err != nil {
			return nil, "", err
		}
		rendered, err = bootstrap.Render(built)
		return rendered, "bootstrap", err
	}
}

// files are those that Envoy itself reads at its start, each once: [reload] files, and the certificates that the bootstrap names. They
// are awaited at the agent's start, and a change of their content starts an epoch.
func (m *specMaker) files(ctx context.Context, c *config.Config) []string {
	paths := slices.Clone(c.Reload.Files)
	node, err := c.Node.Resolve(m.host)
	if err != nil {
		return unique(paths)
	}
	render, err := m.renderer(ctx, c, node)
	if err != nil {
		return unique(paths) // what is wrong with it is told when it is started
	}
	rendered, err := render(adminSocketPrefix)
	if err != nil {
		return unique(paths)
	}
	named, err := bootstrap.CertificateFiles(rendered)
	if err != nil {
		return unique(paths)
	}
	return unique(slices.Concat(paths, named))
}

// input is the bootstrap's part of a configuration.
func (m *specMaker) input(ctx context.Context, c *config.Config, node config.Node) (bootstrap.Input, error) {
	addresses, err := nodeAddresses(node)
	if err != nil {
		return bootstrap.Input{}, err
	}
	input := bootstrap.Input{
		Node: bootstrap.Node{
			Type: node.Type, ID: node.ID, IPs: addresses, Namespace: node.Namespace, ServiceAccount: node.ServiceAccount,
			ServiceCluster: node.ServiceCluster, Domain: node.Domain, TrustDomain: node.TrustDomain, ClusterID: node.ClusterID,
			MeshID: node.MeshID, Network: node.Network, Locality: node.Locality, WorkloadGroup: node.WorkloadGroup,
			Labels: node.Labels, Metadata: node.Metadata, DisableInternal: c.Telemetry.DisableInternal,
			InterceptionMode: strings.ToUpper(c.Capture.Mode),
		},
		Discovery:      bootstrap.Discovery{Socket: c.XDS.Socket, Delta: c.Discovery.Delta},
		ConnectTimeout: c.Envoy.ConnectTimeout,
		DNSRefreshRate: c.Envoy.DNSRefreshRate,
		MaxConnections: uint64(c.Envoy.MaxConnections),
		Prometheus:     c.Telemetry.PrometheusAddress,
		OutlierLogPath: c.Envoy.OutlierLogPath,
		SystemRoots:    systemRoots(),
		Template: bootstrap.TemplateInput{
			ControlPlane: c.Envoy.ControlPlaneBootstrap, DiscoveryAddress: c.Discovery.Address, DiscoveryRootCA: c.Discovery.RootCAFile,
			PilotIdentity: c.Discovery.PilotIdentity, MixerIdentity: c.Discovery.MixerIdentity, ControlPlaneAuth: c.Discovery.Auth == "mtls",
			AdminPort: c.Envoy.AdminPort, StatusPort: portOf(c.Status.Address), STSPort: c.STS.Port, Concurrency: c.Envoy.Concurrency,
			StatNameLength: c.Envoy.StatNameLength, ConfigDir: c.Envoy.ConfigDir, BinaryPath: c.Envoy.Binary,
			DrainDuration: c.Envoy.DrainDuration, ParentShutdown: c.Envoy.ParentShutdownDuration,
		},
	}
	if c.Status.Address != "" {
		input.Ready = bootstrap.Ready{Port: c.Status.ReadyPort, Backend: loopback(c.Status.Address)}
	}
	if c.Telemetry.StatsdUDPAddress != "" {
		address, err := m.resolve(ctx, c.Telemetry.StatsdUDPAddress)
		if err != nil {
			return bootstrap.Input{}, fmt.Errorf("telemetry.statsd_udp_address: Envoy needs an IP address: %w", err)
		}
		input.StatsdAddress = address.String()
	}
	input.MetricsService = service(c.Telemetry.MetricsService, c.Telemetry.MetricsServiceTLS)
	input.AccessLogService = service(c.Telemetry.AccessLogService, c.Telemetry.AccessLogServiceTLS)
	if input.Tracing, err = tracing(c.Tracing); err != nil {
		return bootstrap.Input{}, err
	}
	return input, nil
}

// systemRoots is this system's file of root certificates, "" if it has none.
func systemRoots() string {
	for _, path := range bootstrap.SystemRootCandidates() {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

func service(address string, tls config.TLSSettings) *bootstrap.Service {
	if address == "" {
		return nil
	}
	return &bootstrap.Service{Address: address, Keepalive: tls.TCPKeepalive, TLS: bootstrap.TLS{
		Mode: bootstrap.TLSMode(tls.Mode), CAFile: tls.CAFile, CertFile: tls.CertFile, KeyFile: tls.KeyFile, ServerName: tls.ServerName,
	}}
}

func tracing(c config.Tracing) (*bootstrap.Tracing, error) {
	if c.Provider == "" {
		return nil, nil
	}
	t := &bootstrap.Tracing{Provider: c.Provider, Sampling: c.Sampling, Service: bootstrap.Service{Address: c.Address}}
	if c.Secure {
		t.Service.TLS = bootstrap.TLS{Mode: bootstrap.Simple, CAFile: c.CAFile}
	}
	if c.AccessTokenFile != "" {
		token, err := os.ReadFile(c.AccessTokenFile)
		if err != nil {
			return nil, fmt.Errorf("tracing.access_token_file: %w", err)
		}
		t.AccessToken = strings.TrimSpace(string(token))
	}
	return t, nil
}

// nodeAddresses are the node's own address and its further ones.
func nodeAddresses(node config.Node) ([]netip.Addr, error) {
	var addresses []netip.Addr
	for _, text := range append([]string{node.IP}, node.ExtraIPs...) {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("address of the node: %w", err)
		}
		addresses = append(addresses, address)
	}
	return addresses, nil
}

// loopback is where the agent's own listener is reached from this host.
func loopback(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip.Is6() && !ip.Is4In6() && host != "" && strings.Contains(address, "[") {
			host = "127.0.0.1" // a socket on [::] takes IPv4 too
		}
	}
	return net.JoinHostPort(host, port)
}

func portOf(address string) int {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return 0
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return 0
	}
	return number
}

// commandLine is what all epochs of a configuration share.
func commandLine(c *config.Config, node config.Node, _ *envoy.Binary) envoy.CommandLine {
	address, err := netip.ParseAddr(node.IP)
	if err != nil {
		address = netip.Addr{}
	}
	return envoy.CommandLine{
		DrainTime: c.Envoy.DrainDuration, ParentShutdownTime: c.Envoy.ParentShutdownDuration,
		ServiceCluster: node.ServiceCluster, ServiceNode: node.ServiceNode(), NodeIP: address,
		LogLevel: c.Envoy.LogLevel, ComponentLogLevel: c.Envoy.ComponentLogLevel,
		Concurrency: c.Envoy.Concurrency, StatNameLength: c.Envoy.StatNameLength, ExtraArgs: c.Envoy.ExtraArgs,
	}
}

// digest tells Envoys apart: bootstrap, command line, program, and the content of every file the epoch is made of. What is
// different in every epoch, or applied to a running one (log levels), does not count.
func (m *specMaker) digest(c *config.Config, binary *envoy.Binary, render func(string) ([]byte, error), launched func(epoch.Launch) envoy.CommandLine) (string, error) {
	rendered, err := render("admin.sock")
	if err != nil {
		return "", err
	}
	command := launched(epoch.Launch{HotRestart: binary.HotRestartVersion != ""})
	command.LogLevel, command.ComponentLogLevel, command.SocketPath, command.BaseID = "", "", "", 0
	read, err := bootstrap.CertificateFiles(rendered)
	if err != nil {
		return "", err
	}
	files, err := watch.Digest(unique(slices.Concat(c.Reload.Files, read)))
	if err != nil {
		return "", fmt.Errorf("read the watched files: %w", err)
	}
	sum := sha256.New()
	for _, part := range []string{string(rendered), strings.Join(command.Args(binary), "\x00"), fmt.Sprint(binary.Identity), binary.Path, files} {
		_, _ = fmt.Fprintf(sum, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
