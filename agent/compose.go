package agent

import (
	"context"
	"errors"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/operations"
	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/bus"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/health"
	"outrider.org/outrider/agent/hostconflict"
	"outrider.org/outrider/agent/keeper"
	"outrider.org/outrider/agent/mesh"
	"outrider.org/outrider/agent/ports"
	"outrider.org/outrider/agent/relay"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/status"
	"outrider.org/outrider/agent/sts"
	"outrider.org/outrider/agent/systemd"
	"outrider.org/outrider/agent/xds"
)

// compose creates all parts; none of them runs yet. It returns the result of connecting to the
// keeper, which takes its time in parallel. The sockets are bound before: the lock of the runtime
// directory and xds.Listen keep them from another agent.
func (a *Agent) compose(
	ctx context.Context, loaded *config.Loaded,
) (connected <-chan error, err error) {
	c := loaded.Config
	other, err := envoyUser(c)
	if err != nil {
		return nil, err
	}
	a.keeper = a.newLink(c, other)
	opened := make(chan error, 1)
	go func() { opened <- a.openKeeper(ctx) }()
	if err := a.composeParts(loaded); err != nil {
		return nil, err
	}
	sockets := xds.SocketOptions{Name: "xds.socket", Path: c.XDS.Socket, Server: a.xdsSwitch,
		Logger: a.logOf("xds"), Own: a.isOwn(c)}
	if other != nil {
		sockets.Group = int(other.GID)
	}
	if a.xdsSockets, err = xds.NewSockets(a.forApplications(c, sockets)); err != nil {
		return nil, err
	}
	a.sdsSockets, err = a.newSDSSockets(c, sockets, other)
	return opened, err
}

// composeParts creates the parts that do not need a connected keeper.
func (a *Agent) composeParts(loaded *config.Loaded) (err error) {
	c := loaded.Config
	a.maker = &specMaker{Maker: blueprints(c, a.options.Version, a.logOf("reload")),
		link: a.keeper, log: a.log, cache: filepath.Join(c.Paths.StateDir, binaryCacheName)}
	a.maker.Upstream = a.upstreamBootstrap
	a.composeEpochs(c)
	a.presented = newPresented(a)
	if err := a.composeIdentity(c); err != nil {
		return err
	}
	if err := a.composeDiscovery(c); err != nil { // passes MeshConfig's authorities to the identity
		return err
	}
	a.levels = epoch.NewLogLevels(a.supervisor, a.board, a.logOf("epoch"))
	a.reloader = newReloader(reloadSource{a}, a.requester(c), reloadEffects{a}, a.board,
		a.logOf("reload"), loaded)
	if c.Reload.Watch {
		a.watched = newConfigWatch(a.reloader, c.Reload, a.logOf("watch"))
		a.optional = append(a.optional, a.watched)
	}
	return a.composeViews(c)
}

// newLink returns the link to the keeper: under systemd the one behind the socket in the runtime
// directory, in the foreground one that the agent starts.
func (a *Agent) newLink(c *config.Config, other *keeper.User) *epoch.Link {
	folder := keeperFolder(c.Paths.RuntimeDir)
	var dialer keeper.Dialer = keeper.Program{
		Socket: keeper.Socket(filepath.Join(folder, keeperSocket)),
		Options: keeper.LaunchOptions{Folder: folder, BaseID: uint32(c.Envoy.BaseID), User: other,
			Stderr: os.Stderr}}
	if a.options.Config.InUnit {
		dialer = keeper.Socket(filepath.Join(c.Paths.RuntimeDir, keeperSocket))
	}
	return epoch.NewLink(epoch.LinkOptions{Dialer: dialer, Logger: a.logOf("keeper"),
		EnvoyLog: a.logs.Envoy, ForwardLog: c.Log.Envoy})
}

// openKeeper connects to the keeper. It returns an ExitError with ExitAlreadyRuns if the keeper
// serves another agent.
func (a *Agent) openKeeper(ctx context.Context) error {
	err := a.keeper.Open(ctx)
	if errors.Is(err, keeper.ErrBusy) {
		return exitf(ExitAlreadyRuns, "another outriderd runs on this configuration: %w", err)
	}
	return err
}

func (a *Agent) composeEpochs(c *config.Config) {
	a.supervisor = epoch.New(epoch.Options{
		Admin: func(address string) epoch.Admin { return a.keeper.Admin(address) },
		Board: a.board, Logger: a.logOf("epoch"), ConfigDir: c.Envoy.ConfigDir,
		Explain:  envoy.ExplainExit,
		Obstacle: a.portTaken,
		Settings: epochSettings(c),
	})
	a.keeper.Supervise(a.supervisor)
}

// livePID returns the process of the live Envoy.
func (a *Agent) livePID() (pid int, live bool) {
	e, live := a.proxy.Epoch()
	return e.PID, live
}

func epochSettings(c *config.Config) epoch.Settings {
	return epoch.Settings{BackoffMin: c.Envoy.RestartBackoffMin,
		BackoffMax: c.Envoy.RestartBackoffMax, Limit: c.Envoy.RestartLimit,
		Window: c.Envoy.RestartWindow}
}

func stopOptions(c config.Envoy, now bool) epoch.StopOptions {
	return epoch.StopOptions{TerminationDrain: c.TerminationDrainDuration,
		ExitOnZero: c.ExitOnZeroActiveConnections,
		Minimum:    c.MinimumDrainDuration, Maximum: c.MaximumDrainDuration, Now: now}
}

func (a *Agent) composeDiscovery(c *config.Config) error {
	var err error
	if a.meshWatch, err = newMeshWatch(c, a.logOf("watch")); err != nil {
		return err
	}
	if a.discovery, err = discovery.New(a.discoveryOptions(c)); err != nil {
		return err
	}
	a.proxy = epoch.NewProxy(a.supervisor, embeddedMesh{a})
	a.meshPorts = ports.NewTracker(hostOf(a.options.Config), a.discovery, c.Paths.RuntimeDir,
		a.board, func() { a.exposure.Wake() })
	a.relay = a.newRelay(c)
	a.capture = a.newCapture(c)
	a.exposure = a.newExposure(c)
	a.endpoints = a.newEndpoints()
	a.diskSpace = a.newDiskSpace()
	a.unbound = ports.NewUnbound(ports.UnboundOptions{Host: hostOf(a.options.Config),
		Source: a.discovery, Live: a.livePID, Epochs: a.proxy.Changed, Board: a.board,
		Retry: func(ctx context.Context, stream uint64, names []string) {
			a.xds.Retry(ctx, stream, resource.ListenerType, names)
		}})
	a.health = health.New(health.Options{Settings: healthSettings(c),
		Proxy: captured{a.proxy, a.capture}, Report: a.reportHealth,
		UnitState: systemd.Manager{}.ActiveState, Exec: execProbes(a.options.Config.InUnit),
		Board: a.board, Logger: a.logOf("health")})
	log := a.logOf("xds")
	clients := a.newClients(c)
	a.xds, err = xds.NewServer(xds.ForHost(xds.Options{
		Source: clients, Admit: clients.Admit, Reserved: clients.IsOwn,
		Observer: acknowledged{
			mesh.NewObserver(a.board, log, a.discovery, a.meshPorts, a.unbound), a.presented},
		Logger: log, ControlPlane: "outriderd " + a.options.Version, Words: envoy.RedactMessage,
		Also: a.receiveFailures(c),
	}))
	a.xdsSwitch = &xds.Switch{Embedded: a.xds, Relay: a.relay, Logger: log}
	a.xdsSwitch.UseRelay(c.Discovery.Address != "")
	return err
}

// composeViews creates the parts that show the agent: admin view, private socket, status server and
// D-Bus, and the token exchange.
func (a *Agent) composeViews(c *config.Config) error {
	trusted := trustedUsers(c)
	if c.DNS.Listen != "" || c.Discovery.Address != "" {
		node, err := c.Node.Resolve(config.ThisHost())
		if err != nil {
			return err
		}
		if c.DNS.Listen != "" {
			a.dns = a.newDNS(c, node)
			a.optional = append(a.optional, a.dns)
		}
		if c.Discovery.Address != "" {
			a.applyCached(node)
		}
	}
	a.view = status.NewView(status.ViewOptions{Config: viewConfig(c), Proxy: a.proxy,
		Epochs: a.supervisor, Trusted: trusted, Board: a.board, Logger: a.logOf("status")})
	if c.STS.Port != 0 {
		a.sts = sts.NewServer(sts.Options{
			Address:   net.JoinHostPort("127.0.0.1", strconv.Itoa(c.STS.Port)),
			Manager:   sts.NewGoogle(c.STS.Audience, c.STS.ServiceAccount),
			TokenFile: c.Identity.TokenFile,
			Trusted:   trusted, Board: a.board, Logger: a.logOf("sts"),
		})
		a.optional = append(a.optional, a.sts)
	}
	if c.Discovery.Address != "" && c.Discovery.DebugAddress != "" {
		a.optional = append(a.optional, &relay.DebugServer{Server: a.relay, Users: trusted,
			Address: c.Discovery.DebugAddress, Board: a.board, Logger: a.logOf("relay")})
	}
	epochs := operations.Epochs{Supervisor: a.supervisor, Proxy: a.proxy, Keeper: a.keeper}
	mesh := &operations.Mesh{Discovery: a.discovery, Ports: a.meshPorts, Unbound: a.unbound,
		Exposure: a.exposure, Endpoints: a.endpoints, Identity: a.identity, Proxy: a.proxy}
	a.backend = &backend{
		overview: &overview{reloads: a.reloader, process: process{a}, version: a.options.Version,
			instance: a.options.Config.Instance, started: a.started, board: a.board, proxy: a.proxy,
			relay: a.relay, health: a.health, capture: a.capture, epochs: epochs, mesh: mesh},
		configuration: configuration{options: a.options.Config, reloader: a.reloader,
			discovery: a.discovery, board: a.board,
			checker: blueprint.Checker{Maker: a.maker.Maker, Runner: epoch.Runner{Link: a.keeper}}},
		Epochs: epochs, Mesh: mesh,
		Interception: operations.Interception{Client: a.capture},
		Levels:       operations.Levels{Level: a.level, Log: a.log, Proxy: a.proxy},
		Resources: operations.Resources{Supervisor: a.supervisor, Discovery: a.discovery, XDS: a.xds,
			Relay: a.relay, View: a.view},
	}
	rule := api.Rule{UID: uint32(os.Geteuid()), Group: changersGroup}
	a.api = api.NewServer(api.Options{Socket: filepath.Join(c.Paths.RuntimeDir, api.SocketName),
		Rule: rule, Backend: a.backend, Events: a.board, Logger: a.logOf("api")})
	a.presence = hostconflict.NewPresence(a.api.Ready())
	a.backend.presence = a.presence
	if c.Status.Address != "" {
		connections := status.ConnectionMetrics{"admin": a.view, "socket": a.api}
		a.status = status.NewServer(status.Options{
			Address: c.Status.Address, Config: statusConfig(c), Readiness: a.proxy, Proxy: a.proxy,
			Control: a.backend, Metrics: status.Metrics{Version: a.options.Version, Started: a.started, Board: a.board,
				Supervisor: a.supervisor, Proxy: a.proxy, Keeper: a.keeper, Discovery: a.discovery,
				XDS: a.xds, Relay: a.relay, Health: a.health, Identity: a.identity, STS: a.sts,
				DNS: a.dns, Capture: a.capture, Endpoints: a.endpoints,
				PendingKeys: a.reloader.Pending, Connections: connections}.Gatherer(), Trusted: trusted,
			Board: a.board, Logger: a.logOf("status"),
		})
		connections["status"] = a.status
		a.optional = append(a.optional, a.status)
	}
	if c.Bus.Enabled {
		onBus, err := a.newBus()
		if err != nil {
			return err
		}
		a.optional = append(a.optional, onBus)
	}
	return nil
}

// newBus returns the D-Bus server.
func (a *Agent) newBus() (*bus.Server, error) {
	unit := ""
	if a.options.Config.InUnit {
		var err error
		if unit, err = (systemd.Manager{}).Unit(); err != nil {
			a.logOf("bus").Warn("cannot determine the name of the unit", "error", err)
		}
	}
	return bus.New(bus.Options{Address: a.options.environment()("DBUS_SYSTEM_BUS_ADDRESS"),
		Instance: a.options.Config.Instance, Unit: unit, Backend: a.backend, Events: a.board,
		Conditions: a.board, Logger: a.logOf("bus")})
}

// changersGroup is the group whose members may send changing requests to the private socket.
const changersGroup = "outrider"

func statusConfig(c *config.Config) status.Config {
	return status.Config{Control: c.Status.Control == "loopback",
		ApplicationMetrics: c.Status.ApplicationMetrics, Probes: c.Status.Probes}
}

func viewConfig(c *config.Config) status.ViewConfig {
	return status.ViewConfig{Port: c.Envoy.AdminPort, Full: c.Envoy.AdminAccess == "full"}
}

// trustedUsers returns the users whose connections have their own limits: root, the agent's user
// and Envoy's, which requests readiness for port 15021.
func trustedUsers(c *config.Config) []uint32 {
	trusted := []uint32{0, uint32(os.Geteuid())}
	if found, err := user.Lookup(c.Envoy.User); err == nil {
		if uid, err := strconv.ParseUint(found.Uid, 10, 32); err == nil {
			trusted = append(trusted, uint32(uid))
		}
	}
	return trusted
}

// process is the process in the state.
type process struct{ *Agent }

// Binary returns the Envoy binary of the configuration in force. Before a configuration is in
// force, it returns the last inspected binary, or nil if there is none.
func (p process) Binary() *envoy.Binary {
	if serving := p.serving.Load(); serving != nil {
		return serving
	}
	return p.maker.binary.Load()
}

// Stopping reports whether a stop was requested.
func (p process) Stopping() bool { return p.stopping.Load() }

// RequestStop requests an orderly stop.
func (p process) RequestStop() {
	select {
	case p.quit <- struct{}{}:
	default: // a stop is already requested
	}
}
