package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync/atomic"

	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/bootstrap"
)

// specMaker makes the spec of an epoch from a configuration. The supervisor starts Envoy from it.
type specMaker struct {
	blueprint.Builder
	link  *epoch.KeeperLink // the keeper runs Envoy with --version and --mode validate
	cache string            // file in which inspect caches its result
	log   *slog.Logger
	// process returns the number of worker threads and the environment that the mesh configuration
	// sets for Envoy.
	process func(ctx context.Context, c *config.Config,
		node config.Node) blueprint.EnvoyProcessSettings

	binary atomic.Pointer[envoy.Binary] // last result of inspect
}

// wanted is the Envoy that a configuration describes.
type wanted struct {
	spec   *epoch.Spec
	binary *envoy.Binary // the zero value if Envoy is disabled
	files  []string      // files that Envoy reads at its start; the agent watches them
	grpc   []byte        // content of [xds] grpc_bootstrap_file; nil: none
	// accepted records that Envoy uses the bootstrap of the upstream server. It must be called once
	// the epoch is live; nil: there is no such bootstrap.
	accepted func()
}

// listener receives the progress of making a spec.
type listener struct {
	phase func(phase string)   // called with the current step
	files func(files []string) // called with the files of Envoy before they are read
}

// inspect returns the version and capabilities of the binary at path.
func (m *specMaker) inspect(ctx context.Context, path string) (*envoy.Binary, error) {
	binary, err := envoy.InspectCached(ctx, epoch.KeeperCommandRunner{Link: m.link}, path, m.cache,
		m.log)
	if err == nil {
		m.binary.Store(binary)
	}
	return binary, err
}

// make reads all files from which an epoch is made. The functions of the returned spec read no
// files, so that the epoch does not depend on later changes, however long its start waits.
func (m *specMaker) make(ctx context.Context, loaded *config.Loaded, to listener) (*wanted, error) {
	if !loaded.Config.Envoy.Enabled {
		plan, grpc, err := m.plan(ctx, loaded, to)
		if err != nil {
			return nil, err
		}
		return &wanted{spec: specWithoutEnvoy(), binary: &envoy.Binary{},
			files: plan.StartupFiles(),
			grpc:  grpc}, nil
	}
	path, err := envoy.Find(loaded.Config.Envoy.Binary)
	if err != nil {
		return nil, exit(ExitProgramMissing, err)
	}
	to.phase("asking Envoy what it is")
	binary, err := m.inspect(ctx, path)
	if err != nil {
		return nil, exit(ExitProgramMissing, err)
	}
	if err := blueprint.CheckEnvoyCanWrite(ctx, epoch.KeeperCommandRunner{Link: m.link},
		loaded); err != nil {
		return nil, exit(ExitConfiguration, err)
	}
	plan, grpc, err := m.plan(ctx, loaded, to)
	if err != nil {
		return nil, err
	}
	if err := plan.CheckBinary(binary); err != nil {
		return nil, exit(ExitConfiguration, err)
	}
	spec, err := m.spec(loaded.Config, plan, binary)
	if err != nil {
		return nil, exit(ExitConfiguration, err)
	}
	return &wanted{spec: spec, binary: binary, files: plan.StartupFiles(), grpc: grpc,
		accepted: plan.OnBootstrapAccepted}, nil
}

// plan makes the blueprint, and the bootstrap of gRPC applications.
func (m *specMaker) plan(ctx context.Context, loaded *config.Loaded, to listener) (
	plan *blueprint.Blueprint, grpc []byte, err error,
) {
	maker := m.Builder
	maker.ReadEnvoyProcessSettings = m.process
	maker.ResolveAddress = func(ctx context.Context, address string) (netip.AddrPort, error) {
		to.phase("looking up " + address)
		return m.ResolveAddress(ctx, address)
	}
	to.phase("making the bootstrap")
	plan, err = maker.Build(ctx, loaded)
	if failed, ok := errors.AsType[*bootstrap.RenderProgramError](err); ok && failed.Missing {
		return nil, nil, exit(ExitProgramMissing, err)
	} else if ok {
		return nil, nil, &ExitError{Code: ExitInternal, Err: err} // makes systemd retry
	}
	if err == nil {
		grpc, err = plan.GRPCBootstrap()
	}
	if err != nil {
		return nil, nil, exit(ExitConfiguration, err)
	}
	to.files(plan.StartupFiles())
	return plan, grpc, nil
}

// spec converts a blueprint to a spec for the supervisor.
func (m *specMaker) spec(
	c *config.Config, plan *blueprint.Blueprint, binary *envoy.Binary,
) (*epoch.Spec, error) {
	digest, err := plan.Digest(binary)
	if err != nil {
		return nil, err
	}
	info := m.link.Connection().Info()
	launched := func(l epoch.LaunchInput) envoy.CommandLine {
		line := plan.Command
		line.ConfigFile, line.RestartEpoch, line.HotRestart = l.BootstrapPath, l.RestartEpoch, l.HotRestart
		line.OutriderEpoch = l.Number
		line.BaseID, line.SocketPath = info.BaseIDOf(l.Lineage), info.SocketPath
		return line
	}
	environment := append(envoyEnvironment(), plan.Environment...)
	socket := func(l epoch.LaunchInput) string { return epoch.AdminSocket(info.Folder, l.Number) }
	spec := &epoch.Spec{
		Digest: digest,
		Bootstrap: func(l epoch.LaunchInput) ([]byte,
			error) {
			return plan.RenderBootstrap(socket(l))
		},
		Command: func(l epoch.LaunchInput) (epoch.Command, error) {
			return epoch.Command{Path: binary.Path, Args: launched(l).Args(binary),
				Env: environment}, nil
		},
		AdminAddress:       func(l epoch.LaunchInput) string { return plan.AdminAddress(socket(l)) },
		HotRestartVersion:  binary.HotRestartVersion,
		Namespace:          c.Node.Namespace,
		OutriderListeners:  c.AgentDefinedEnvoyListeners(),
		LiveTimeout:        c.Envoy.LiveTimeout,
		DrainTime:          c.Envoy.DrainDuration,
		ParentShutdownTime: c.Envoy.ParentShutdownDuration,
	}
	if c.Reload.Validate {
		spec.ValidateCommand = func(l epoch.LaunchInput) (epoch.Command, error) {
			return epoch.Command{Path: binary.Path, Args: launched(l).ValidateArgs(binary),
				Env: environment}, nil
		}
	}
	return spec, nil
}

// Caches in the state directory.
const (
	binaryCacheName    = "envoy-binary.json" // see envoy.InspectCached
	bootstrapCacheName = "bootstrap.json"    // see bootstrap.RenderProgram
)

// newSpecMaker returns a specMaker that uses the properties of this host, and caches the output of
// outrider-bootstrap in the state directory.
func newSpecMaker(b *base, c *config.Config, link *epoch.KeeperLink, boots *bootstraps) *specMaker {
	program := &bootstrap.RenderProgram{CachePath: filepath.Join(c.Paths.StateDir,
		bootstrapCacheName),
		ExpectedVersion: b.options.Version, Log: b.logOf("reload")}
	maker := blueprint.BuilderForThisHost()
	maker.RenderBootstrap, maker.FetchUpstreamBootstrap = program.Render, boots.request
	return &specMaker{Builder: maker, link: link, log: b.log,
		cache: filepath.Join(c.Paths.StateDir, binaryCacheName)}
}

// envoyEnvironment returns the environment of Envoy, to which the mesh configuration may add
// variables. Envoy inherits nothing from the agent or the keeper.
func envoyEnvironment() []string { return []string{"PATH=/usr/bin:/bin"} }
