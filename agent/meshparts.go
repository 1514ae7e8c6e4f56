package agent

import (
	"context"

	"outrider.org/outrider/agent/capture"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/dns"
	"outrider.org/outrider/agent/endpoints"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/exposure"
	"outrider.org/outrider/agent/ports"
	"outrider.org/outrider/agent/relay"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/watch"
	"outrider.org/outrider/agent/xds"
)

// meshParts are the components of the agent that serve the mesh configuration to Envoy and check
// its effects on this host, such as listeners that Envoy cannot bind.
type meshParts struct {
	watch     *watch.Watcher // watches the files of the mesh configuration
	discovery *discovery.Server
	xds       *xds.Server // serves the resources of discovery
	relay     *relay.Server
	upstream  *upstream // selects whether xds or relay serves Envoy
	grpc      *grpcBootstrap
	dns       *dns.Server // nil if disabled
	tracker   *ports.PortTracker
	unbound   *ports.UnboundListeners
	capture   *capture.Controller
	exposure  *exposure.Checker
	endpoints *endpoints.Tracker
	inForce   meshInForce
	process   *processSettings
}

func newMesh(b *base, c *config.Config, state *reloadState, e *epochParts, w *workloadIdentity,
) (m *meshParts, err error) {
	m = &meshParts{grpc: &grpcBootstrap{board: b.board}}
	var node config.Node
	if c.DNS.Listen != "" || len(c.Discovery.Addresses) > 0 {
		if node, err = c.Node.WithHostDefaults(config.ThisHost()); err != nil {
			return nil, err
		}
	}
	if c.DNS.Listen != "" {
		m.dns = newDNS(b, c, node)
	}
	if m.watch, err = newMeshWatch(c, b.logOf("watch")); err != nil {
		return nil, err
	}
	changed := make(chan struct{}, 1)
	pushed := func() {
		notify(changed)
		m.endpoints.RecheckProviders()
		if m.dns != nil {
			publishNames(state, m.discovery, m.dns)
		}
	}
	if m.discovery, err = newDiscovery(b, c, m.watch.Changes(), e, w, pushed); err != nil {
		return nil, err
	}
	m.process = &processSettings{discovery: m.discovery, state: state, pushed: changed}
	listeners := make(chan struct{}, 1) // receives after Envoy has accepted listeners
	m.tracker = ports.NewPortTracker(hostOf(b.options.Config), m.discovery, c.Paths.RuntimeDir,
		b.board,
		func() { notify(listeners) })
	m.relay = newRelay(b, c, e.own, w, m.dns, m.grpc, listeners)
	if len(c.Discovery.Addresses) > 0 {
		applyCached(m.relay, node)
	}
	m.capture = newCapture(b, c, e.supervisor)
	m.exposure = newExposure(b, c, state, e, &meshPolicy{m.relay, m.discovery, m.tracker}, m.capture,
		listeners)
	m.endpoints = newEndpoints(b, state, e.supervisor, m.discovery)
	if m.xds, m.unbound, err = newXDS(b, m, e, w.acknowledged); err != nil {
		return nil, err
	}
	m.upstream = &upstream{relay: m.relay, identity: w.Manager,
		xdsSwitch: &xds.ServiceSwitch{Embedded: m.xds, Relay: m.relay, Logger: b.logOf("xds")}}
	m.upstream.xdsSwitch.UseRelay(len(c.Discovery.Addresses) > 0)
	m.inForce = meshInForce{state, m.discovery, m.unbound, m.exposure}
	return m, nil
}

// newXDS returns the xDS server for the resources of the embedded discovery server, and the
// component that makes it resend listeners that Envoy could not bind.
func newXDS(
	b *base, m *meshParts, e *epochParts, acknowledgements chan<- struct{},
) (server *xds.Server, unbound *ports.UnboundListeners, err error) {
	log, clients := b.logOf("xds"), newClients(b, m.discovery, e, m.grpc)
	unbound = ports.NewUnboundListeners(ports.UnboundOptions{Host: hostOf(b.options.Config),
		Source: m.discovery, EpochsChanged: e.supervisor.Changed, Conditions: b.board,
		LiveEnvoy: func() (int, bool) {
			live, ok := liveEpoch(e.supervisor)
			return live.PID, ok
		},
		ResendListeners: func(ctx context.Context, stream uint64, names []string) {
			server.ResendResources(ctx, stream, resource.ListenerType, names)
		}})
	server, err = xds.NewServer(xds.WithHostLimits(xds.Options{
		Source: clients, Admit: clients.Admit, HasReservedStreams: clients.IsEnvoyOrAgent,
		EpochNumber: epochOf(e.supervisor),
		Observer: acknowledged{
			newXDSObserver(b.board, log, m.discovery, m.tracker, unbound), acknowledgements},
		Logger: log, ControlPlane: "outriderd " + b.options.Version, Redact: envoy.RedactMessage,
		RegisterServices: receiveFailures(m.endpoints, e.own),
	}))
	return server, unbound, err
}

// newSockets binds the sockets of xDS and SDS.
func newSockets(b *base, c *config.Config, e *epochParts, server xds.Service, w *workloadIdentity,
) (xdsSockets, sdsSockets *xds.Sockets, err error) {
	options := xds.SocketOptions{Name: "xds.socket", Path: c.XDS.Socket, Server: server,
		Logger: b.logOf("xds"), IsEnvoyOrAgentUser: e.own}
	if e.user != nil {
		options.Group = int(e.user.GID)
	}
	xdsSockets, err = xds.NewSockets(forApplications(b.options.Config.RunsInUnit, c, options))
	if err != nil {
		return nil, nil, err
	}
	sdsSockets, err = w.newSockets(c, options, e.user)
	return xdsSockets, sdsSockets, err
}
