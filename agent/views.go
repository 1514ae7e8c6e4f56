package agent

import (
	"context"
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
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/health"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/agent/relay"
	"outrider.org/outrider/agent/status"
	"outrider.org/outrider/agent/sts"
	"outrider.org/outrider/agent/systemd"
)

// views are the HTTP servers of the agent: admin view, status, token exchange and debug interface.
type views struct {
	admin       *status.AdminView
	status      *status.Server     // nil if disabled
	sts         *sts.Server        // nil if disabled
	debug       *relay.DebugServer // nil if disabled
	connections status.ConnectionMetrics
}

// composed has the components of the agent whose state the HTTP servers and operations report or
// change.
type composed struct {
	state    *reloadState
	life     *agentEnd
	epochs   *epochParts
	identity *workloadIdentity
	mesh     *meshParts
	proxy    *epoch.Proxy
	health   *health.Checker
}

// operations returns the operations on epochs.
func (p composed) operations() operations.EpochOperations {
	return operations.EpochOperations{Supervisor: p.epochs.supervisor, Proxy: p.proxy,
		Keeper: p.epochs.link, Health: p.health}
}

func newViews(b *base, c *config.Config, p composed) *views {
	trusted, e, m := trustedUsers(c), p.epochs, p.mesh
	v := &views{connections: status.ConnectionMetrics{}}
	v.admin = status.NewAdminView(status.AdminViewOptions{Config: viewConfig(c), Proxy: p.proxy,
		Epochs: e.supervisor, TrustedUIDs: trusted, Conditions: b.board, Logger: b.logOf("status")})
	v.connections["admin"] = v.admin
	if c.STS.Port != 0 {
		v.sts = sts.NewServer(sts.Options{
			Address:     net.JoinHostPort("127.0.0.1", strconv.Itoa(c.STS.Port)),
			Google:      sts.NewGoogleExchanger(c.STS.Audience, c.STS.ServiceAccount),
			TokenFile:   c.Identity.TokenFile,
			TrustedUIDs: trusted, Conditions: b.board, Logger: b.logOf("sts"),
		})
	}
	if len(c.Discovery.Addresses) > 0 && c.Discovery.DebugAddress != "" {
		v.debug = &relay.DebugServer{Server: m.relay, Users: trusted,
			Address: c.Discovery.DebugAddress, Conditions: b.board, Logger: b.logOf("relay")}
	}
	if c.Status.Address == "" {
		return v
	}
	metrics := status.Metrics{Version: b.options.Version, Started: b.started, Conditions: b.board,
		Supervisor: e.supervisor, Proxy: p.proxy, Keeper: e.link, Discovery: m.discovery, XDS: m.xds,
		Relay: m.relay, Health: p.health, Identity: p.identity.Manager, STS: v.sts, DNS: m.dns,
		Capture: m.capture, Endpoints: m.endpoints, PendingKeys: p.state.Pending,
		Connections: v.connections}
	v.status = status.NewServer(status.Options{
		Address: c.Status.Address, Config: statusConfig(c), Readiness: p.proxy, Proxy: p.proxy,
		DrainController: control{p.operations(),
			p.life}, Metrics: metrics.Gatherer(), TrustedUIDs: trusted,
		Conditions: b.board, Logger: b.logOf("status"),
	})
	v.connections["status"] = v.status
	return v
}

// control implements status.DrainController.
type control struct {
	operations.EpochOperations
	life *agentEnd
}

// Quit requests an orderly stop and returns at once.
func (c control) Quit(context.Context) error {
	c.life.requestStop()
	return nil
}

// newBackend returns the operations of the private socket and of D-Bus.
func newBackend(b *base, p composed, v *views, maker *specMaker, r *reloader) *backend {
	e, m, epochs := p.epochs, p.mesh, p.operations()
	mesh := &operations.MeshOperations{Discovery: m.discovery, Ports: m.tracker, Unbound: m.unbound,
		Exposure: m.exposure, Endpoints: m.endpoints, Identity: p.identity.Manager, Proxy: p.proxy}
	return &backend{
		overview: &overview{state: p.state, life: p.life, maker: maker, version: b.options.Version,
			instance: b.options.Config.Instance, started: b.started, board: b.board,
			presence: e.claims.presence, proxy: p.proxy, relay: m.relay, health: p.health,
			capture: m.capture, epochs: epochs, mesh: mesh},
		configuration: configuration{options: b.options.Config, reloader: r, board: b.board,
			checker: blueprint.CheckOptions{Builder: maker.Builder,
				Runner: epoch.KeeperCommandRunner{Link: e.link}}},
		EpochOperations: epochs, MeshOperations: mesh,
		CaptureOperations: operations.CaptureOperations{Client: m.capture},
		LogLevelOperations: operations.LogLevelOperations{Level: b.level, Log: b.log,
			Proxy: p.proxy},
		ResourceOperations: operations.ResourceOperations{Supervisor: e.supervisor,
			Discovery: m.discovery, XDS: m.xds,
			Relay: m.relay, AdminView: v.admin},
	}
}

func newAPI(
	b *base, c *config.Config, operations *backend, readiness *lifecycle.Readiness,
) *api.Server {
	rule := api.AccessRule{UID: uint32(os.Geteuid()), Group: changersGroup}
	return api.NewServer(api.Options{Socket: filepath.Join(c.Paths.RuntimeDir, api.SocketName),
		Rule: rule, Backend: operations, Conditions: b.board, Logger: b.logOf("api"),
		Readiness: readiness})
}

// newBus returns the D-Bus server.
func newBus(b *base, operations *backend) (*bus.Server, error) {
	unit := ""
	if b.options.Config.RunsInUnit {
		var err error
		if unit, err = (systemd.Manager{}).OwnUnit(); err != nil {
			b.logOf("bus").Warn("cannot determine the name of the unit", "error", err)
		}
	}
	return bus.New(bus.Options{Address: b.options.environment()("DBUS_SYSTEM_BUS_ADDRESS"),
		Instance: b.options.Config.Instance, Unit: unit, Backend: operations, Conditions: b.board,
		Logger: b.logOf("bus")})
}

// changersGroup is the group whose members may send changing requests to the private socket.
const changersGroup = "outrider"

func statusConfig(c *config.Config) status.Config {
	return status.Config{ProxyControlAllowed: c.Status.ProxyControl == "loopback",
		ApplicationMetrics: c.Status.ApplicationMetrics, Probes: c.Status.Probes}
}

func viewConfig(c *config.Config) status.AdminViewConfig {
	return status.AdminViewConfig{Port: c.Envoy.AdminPort, Full: c.Envoy.AdminAccess == "full"}
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
