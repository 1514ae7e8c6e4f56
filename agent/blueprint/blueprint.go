// Package blueprint makes Envoy's bootstrap and command line from a configuration: it reads the
// files of the bootstrap, resolves names, renders the bootstrap and builds the command line.
//
// Start, reload and check (outriderd --check, outrider config check, CheckConfig on D-Bus) all use
// it, so that a check refuses what a reload would refuse. Errors are config.Errors with the
// position of the key.
package blueprint

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"outrider.org/outrider/agent/cloud"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/watch"
	"outrider.org/outrider/bootstrap"
)

// Builder makes Blueprints.
type Builder struct {
	Host config.Host
	// ResolveAddress converts host:port to address:port.
	ResolveAddress  func(ctx context.Context, address string) (netip.AddrPort, error)
	RenderBootstrap func(ctx context.Context, request bootstrap.Request) (*bootstrap.Rendered,
		error)
	Cloud *cloud.MetadataService
	// ReadEnvoyProcessSettings returns what the mesh configuration sets for Envoy's process. If it
	// is nil, the mesh configuration sets nothing.
	ReadEnvoyProcessSettings func(ctx context.Context, c *config.Config,
		node config.Node) EnvoyProcessSettings
	// FetchUpstreamBootstrap fetches, for a node (JSON), the bootstrap (protobuf) that the upstream
	// server provides. If the server is unreachable, it may return the bootstrap of an earlier
	// request. accepted must be called once Envoy uses the bootstrap. FetchUpstreamBootstrap is nil
	// in a process without a connection to the server.
	FetchUpstreamBootstrap func(ctx context.Context, c *config.Config, node []byte,
		use func(content []byte) error) (accepted func(), err error)
}

// EnvoyProcessSettings is what the mesh configuration sets for Envoy's process.
type EnvoyProcessSettings struct {
	Concurrency *int32 // worker threads; 0: one for each core; nil: not set
	Environment map[string]string
}

// concurrencyKey is the key that overrides EnvoyProcessSettings.Concurrency if a configuration file
// sets it.
const concurrencyKey = "envoy.concurrency"

// BuilderForThisHost returns a Builder that uses the resolver of this host and runs the installed
// outrider-bootstrap to render.
func BuilderForThisHost() Builder {
	return Builder{Host: config.ThisHost(), ResolveAddress: resolveAddress,
		Cloud:           &cloud.MetadataService{},
		RenderBootstrap: (&bootstrap.RenderProgram{}).Render}
}

// Blueprint describes the Envoy of a configuration, without the values that differ between epochs.
// Build has read all its sources, so later changes of the files do not change it.
type Blueprint struct {
	Command envoy.CommandLine
	// Environment has variables ("KEY=value", sorted) that the mesh configuration adds to Envoy's.
	Environment []string
	// OnBootstrapAccepted must be called once Envoy uses the bootstrap; nil: no call is needed.
	OnBootstrapAccepted func()

	loaded   *config.Loaded
	rendered *bootstrap.Rendered
	files    []string // read by Envoy at its start
}

// Build reads, resolves and renders a configuration. The error is config.Errors with all problems,
// or a *bootstrap.RenderProgramError if outrider-bootstrap itself failed.
func (m Builder) Build(ctx context.Context, loaded *config.Loaded) (*Blueprint, error) {
	node, err := m.node(ctx, loaded)
	if err != nil {
		return nil, err
	}
	b := &Blueprint{loaded: loaded}
	if m.ReadEnvoyProcessSettings != nil {
		b.apply(m.ReadEnvoyProcessSettings(ctx, loaded.Config, node))
	}
	loaded = b.loaded
	c := loaded.Config
	request, errs := b.read()
	input, more := m.input(ctx, loaded, node)
	if errs = append(errs, more...); len(errs) > 0 {
		return nil, errs
	}
	request.Input, b.Command = input, commandLine(c, node)
	request.ResultIsSecret = request.ResultIsSecret || input.Tracing != nil &&
		input.Tracing.AccessToken != ""
	b.rendered, err = m.RenderBootstrap(ctx, request)
	if err == nil && c.Envoy.Enabled && c.Discovery.DynamicBootstrap {
		err = m.requestUpstream(ctx, b, request)
	}
	if _, transient := errors.AsType[*bootstrap.RenderProgramError](err); transient {
		return nil, err
	}
	if fault, ok := errors.AsType[*config.Error](err); ok {
		return nil, config.Errors{fault}
	}
	if err != nil {
		return nil, config.Errors{b.refused(err)}
	}
	if fault := b.missingSecrets(); fault != nil {
		return nil, config.Errors{fault}
	}
	b.files = UniquePaths(slices.Concat(c.Reload.Files, b.rendered.ReferencedFiles,
		identityFiles(c.Identity)))
	return b, nil
}

// apply adds what the mesh configuration sets for the process. A worker count in the agent's
// configuration has priority.
func (b *Blueprint) apply(p EnvoyProcessSettings) {
	for _, name := range slices.Sorted(maps.Keys(p.Environment)) {
		b.Environment = append(b.Environment, name+"="+p.Environment[name])
	}
	if _, explicit := b.loaded.Positions[concurrencyKey]; explicit || p.Concurrency == nil {
		return
	}
	with, c := *b.loaded, *b.loaded.Config
	c.Envoy.Concurrency = int(*p.Concurrency)
	with.Config = &c
	b.loaded = &with
}

// identityFiles returns the workload's certificate files if a change of them requires a new epoch:
// those of provider "files", or those that the agent writes.
func identityFiles(i config.Identity) []string {
	switch {
	case !i.RestartOnChange:
		return nil
	case i.Provider == "files":
		return []string{i.CertFile, i.KeyFile, i.RootCAFile}
	case i.OutputDir != "":
		var files []string
		for _, name := range []string{"cert-chain.pem", "key.pem", "root-cert.pem"} {
			files = append(files, filepath.Join(i.OutputDir, name))
		}
		return files
	}
	return nil
}

// read reads the user's files from which the bootstrap is made: custom bootstrap, template,
// override.
func (b *Blueprint) read() (request bootstrap.Request, errs config.Errors) {
	e := b.loaded.Config.Envoy
	for _, file := range []struct {
		key, path string
		into      **bootstrap.File
	}{
		{customKey, e.CustomConfigFile, &request.Custom},
		{templateKey, e.TemplateFile, &request.Template},
		{overrideKey, e.BootstrapOverride, &request.Override},
	} {
		if file.path == "" {
			continue
		}
		content, fault := readFile(b.loaded, file.key, file.path, maxFile)
		if fault != nil {
			errs = append(errs, fault)
		}
		*file.into = &bootstrap.File{Path: file.path, Content: content}
		request.ResultIsSecret = request.ResultIsSecret || b.loaded.IsInCredentialsDir(file.path)
	}
	return request, errs
}

// Keys that errors of the bootstrap and of extra arguments refer to.
const (
	customKey   = "envoy.custom_config_file"
	templateKey = "envoy.template_file"
	overrideKey = "envoy.bootstrap_override"

	extraArgsKey = "envoy.extra_args"
	dynamicKey   = "discovery.dynamic_bootstrap"
)

// RenderBootstrap returns the bootstrap (JSON) of an epoch with its admin interface on the Unix
// socket adminSocket.
func (b *Blueprint) RenderBootstrap(adminSocket string) ([]byte, error) {
	return b.rendered.WithAdminSocket(adminSocket)
}

// refused converts an error of the renderer to an error at the key that names the invalid file.
func (b *Blueprint) refused(err error) *config.Error {
	override := b.loaded.Config.Envoy.BootstrapOverride
	if wrong, ok := errors.AsType[*bootstrap.Error](err); ok && override != "" &&
		wrong.File == override {
		return b.loaded.KeyError(overrideKey, err.Error(), "correct the file, or remove the key")
	}
	return b.fault(err.Error())
}

// fault returns an error about the whole bootstrap, with the position of the configuration key that
// specifies the bootstrap.
func (b *Blueprint) fault(message string) *config.Error {
	switch e := b.loaded.Config.Envoy; {
	case e.CustomConfigFile != "":
		return b.loaded.KeyError(customKey, message, "correct the file, or remove the key")
	case e.TemplateFile != "":
		return b.loaded.KeyError(templateKey, message, "correct the file, or remove the key")
	case b.loaded.Config.Discovery.DynamicBootstrap:
		return b.loaded.KeyError(dynamicKey, message, "check the server, or remove the key")
	case e.BootstrapOverride != "":
		return b.loaded.KeyError(overrideKey, message, "correct the file, or remove the key")
	default:
		return b.loaded.KeyError("", message, "")
	}
}

// StartupFiles returns the files that Envoy reads at its start, without duplicates: [reload] files,
// the certificates that the bootstrap names and, with restart_on_change, the workload's.
func (b *Blueprint) StartupFiles() []string { return slices.Clone(b.files) }

// AdminAddress returns the admin address of an epoch whose bootstrap was rendered for adminSocket:
// that socket, or the address in a custom bootstrap, which all epochs share.
func (b *Blueprint) AdminAddress(adminSocket string) string {
	return cmp.Or(b.rendered.AdminAddress, adminSocket)
}

// Digest returns a hash (SHA-256, hexadecimal) of what identifies an Envoy process: bootstrap,
// command line, binary, environment and the content of all files. It excludes values that differ
// between epochs, and log levels, which apply to a running epoch.
func (b *Blueprint) Digest(binary *envoy.Binary) (string, error) {
	command := b.Command
	command.HotRestart, command.LogLevel, command.ComponentLogLevel =
		binary.HotRestartVersion != "", "", ""
	files, err := watch.DigestFiles(slices.Clone(b.files))
	if err != nil {
		return "", fmt.Errorf("read the watched files: %w", err)
	}
	sum := sha256.New()
	parts := []string{string(b.rendered.Text), strings.Join(command.Args(binary), "\x00"),
		fmt.Sprint(binary.Identity), binary.Path, files}
	// Without variables the digest stays that of agents which did not support them, so that their
	// upgrade needs no new epoch.
	if len(b.Environment) > 0 {
		parts = append(parts, strings.Join(b.Environment, "\x00"))
	}
	for _, part := range parts {
		_, _ = fmt.Fprintf(sum, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// CheckBinary returns config.Errors for settings that the binary does not support.
func (b *Blueprint) CheckBinary(binary *envoy.Binary) error {
	var errs config.Errors
	if b.Command.StatNameLength != defaultStatNameLength && !binary.SupportsStatNameLength() {
		errs = append(errs, b.loaded.KeyError("envoy.stat_name_length",
			"Envoy "+binary.Version+" has no --max-obj-name-len", "remove the key"))
	}
	if unknown := binary.UnknownFlag(b.Command.ExtraArgs); unknown != "" {
		errs = append(errs, b.loaded.KeyError(extraArgsKey, fmt.Sprintf("Envoy %s has no flag %s",
			binary.Version, unknown), "remove it"))
	}
	if len(errs) > 0 {
		return errs
	}
	return nil
}

// defaultStatNameLength is the default of [envoy] stat_name_length, for which current Envoys need
// no flag.
const defaultStatNameLength = 189

// commandLine returns the arguments that all epochs of a configuration share.
func commandLine(c *config.Config, node config.Node) envoy.CommandLine {
	address, err := netip.ParseAddr(node.IP)
	if err != nil {
		address = netip.Addr{}
	}
	return envoy.CommandLine{
		DrainTime: c.Envoy.DrainDuration, ParentShutdownTime: c.Envoy.ParentShutdownDuration,
		ServiceCluster: node.ServiceCluster, ServiceNode: node.ServiceNode(), NodeIP: address,
		LogLevel: c.Envoy.LogLevel, ComponentLogLevel: c.Envoy.ComponentLogLevel,
		Concurrency: c.Envoy.Concurrency, StatNameLength: c.Envoy.StatNameLength,
		ExtraArgs: c.Envoy.ExtraArgs,
	}
}

// UniquePaths sorts paths in place and removes empty ones and duplicates.
func UniquePaths(paths []string) []string {
	slices.Sort(paths)
	return slices.DeleteFunc(slices.Compact(paths), func(path string) bool { return path == "" })
}
