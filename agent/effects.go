package agent

import (
	"context"

	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/diskspace"
	"outrider.org/outrider/agent/dns"
	"outrider.org/outrider/agent/endpoints"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/health"
	"outrider.org/outrider/agent/status"
	"outrider.org/outrider/agent/sts"
	"outrider.org/outrider/agent/watch"
	"outrider.org/outrider/agent/xds"
)

// reloadSource implements specSource: it loads the configuration files and checks them against this
// host.
type reloadSource struct {
	options    config.Options
	state      *reloadState
	claims     *hostClaims
	maker      *specMaker
	supervisor *epoch.Supervisor
	discovery  *discovery.Server
	xds        *xds.Server
}

func (s reloadSource) Load() (*config.Loaded, error) { return config.Load(s.options) }

func (s reloadSource) Check(ctx context.Context, loaded *config.Loaded) error {
	// During the agent's start, InForce already returns the configuration that is being checked.
	before := s.state.InForce().Config.Health.Exec
	if err := blueprint.CheckExecProbe(loaded, before, s.options.RunsInUnit); err != nil {
		return config.Errors{err}
	}
	_, live := liveEpoch(s.supervisor)
	return s.claims.check(ctx, loaded, live)
}

func (s reloadSource) Make(
	ctx context.Context, loaded *config.Loaded, to listener,
) (*wanted, error) {
	return s.maker.make(ctx, loaded, to)
}

func (s reloadSource) LostCertificates(ctx context.Context) error {
	if live, ok := liveEpoch(s.supervisor); ok {
		return lostCertificates(ctx, s.discovery, s.xds, live)
	}
	return nil
}

// reloadEffects implements effects: it applies a configuration to the agent's components.
type reloadEffects struct {
	*base
	state      *reloadState
	watched    *configWatch // nil if disabled
	held       *heldConfigs
	keeper     *epoch.KeeperLink
	supervisor *epoch.Supervisor
	levels     *epoch.LogLevelApplier
	view       *status.AdminView
	status     *status.Server // nil if disabled
	sts        *sts.Server    // nil if disabled
	dns        *dns.Server    // nil if disabled
	xdsSockets *xds.Sockets
	sdsSockets *xds.Sockets
	identity   *workloadIdentity
	upstream   *upstream
	grpc       *grpcBootstrap
	health     *health.Checker
	meshWatch  *watch.Watcher
	discovery  *discovery.Server
	endpoints  *endpoints.Tracker
	diskSpace  *diskspace.Checker
}

func (e reloadEffects) Expect(
	ctx context.Context, id uint64, loaded *config.Loaded, files []string,
) {
	if e.watched != nil {
		e.watched.expect(ctx, id, loaded, files)
	}
}

func (e reloadEffects) Hold(id uint64, read *prepared) error {
	e.held.hold(id, read.loaded.Config)
	e.view.YieldPort(id, read.wanted.spec.AdminAddress(epoch.LaunchInput{}))
	c := read.loaded.Config
	if err := e.sdsSockets.BindSocket(id, c.SDS.Socket); err != nil {
		return socketFault(read.loaded, "sds.socket", c.SDS.Socket, err)
	}
	if err := e.xdsSockets.BindSocket(id, c.XDS.Socket); err != nil {
		return socketFault(read.loaded, "xds.socket", c.XDS.Socket, err)
	}
	return nil
}

func (e reloadEffects) Release(id uint64, refused bool) {
	if e.watched != nil {
		e.watched.over(id, refused)
	}
	e.held.unhold(id, refused, e.state.InForce().Config)
	e.sdsSockets.ReleaseSockets(id)
	e.xdsSockets.ReleaseSockets(id)
	e.view.ReclaimPort(id)
}

func (e reloadEffects) AdjustEpoch(ctx context.Context, step func(string)) {
	step("Envoy's log levels")
	e.levels.Update(ctx)
}

// Enact applies the settings with effect "live" (no new epoch is needed) to each component, and
// watches the files of the configuration.
func (e reloadEffects) Enact(
	ctx context.Context, old *config.Loaded, won *prepared, step func(string),
) {
	c := won.loaded.Config
	e.grpc.write(c.XDS.GRPCBootstrapFile, won.wanted.grpc)
	e.state.binary.Store(won.wanted.binary) // readers must know the binary before an epoch runs it
	if won.wanted.accepted != nil {
		won.wanted.accepted()
	}
	step("xDS sockets")
	e.upstream.configure(c)
	e.health.Configure(healthSettings(c))
	e.identity.configure(c)
	e.sdsSockets.SetCurrentPath(c.SDS.Socket)
	e.xdsSockets.SetCurrentPath(c.XDS.Socket)
	// If the key is unchanged, a level that a request has set remains.
	if c.Log.Level != old.Config.Log.Level {
		_ = e.level.UnmarshalText([]byte(c.Log.Level)) // validated with the configuration
	}
	step("Envoy's log levels")
	e.levels.Configure(ctx, c.Envoy.LogLevel, c.Envoy.ComponentLogLevel, won.wanted.spec)
	e.keeper.SetLogForwarding(c.Log.IncludeEnvoy)
	e.supervisor.Configure(c.Envoy)
	step("status address and admin view")
	if e.status != nil {
		e.status.Configure(statusConfig(c))
	}
	if e.sts != nil {
		e.sts.Configure(c.Identity.TokenFile)
	}
	if err := e.view.Configure(viewConfig(c)); err != nil {
		e.logOf("status").Warn("cannot apply envoy.admin_port to the admin view", "error", err)
	}
	step("watch of the mesh configuration")
	// Watch before discovery reads the files, so that no later change is missed.
	if err := e.meshWatch.SetPaths(meshPaths(c)); err != nil {
		e.log.Error("cannot watch the files of the mesh configuration", "error", err)
	}
	step("mesh configuration")
	settings := discoverySettings(c)
	settings.EnvoyVersion = won.wanted.binary.Version
	apply := e.discovery.Reload
	if won.first {
		apply = e.discovery.Configure
	}
	if err := apply(settings); err != nil {
		e.logOf("discovery").Error("cannot apply [discovery] settings", "error", err)
	}
	if e.dns != nil {
		e.dns.Configure(c.DNS)
		publishNames(e.state, e.discovery, e.dns)
	}
	e.endpoints.CheckSoon()
	e.diskSpace.Wake()
	step("watch of the configuration")
	if e.watched != nil {
		e.watched.configure(won.loaded, won.wanted.files)
	}
}
