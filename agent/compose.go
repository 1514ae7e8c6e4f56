package agent

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/fdstore"
	"outrider.org/outrider/agent/hostconflict"
	"outrider.org/outrider/agent/journal"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/agent/systemd"
)

// base holds the arguments that the constructors of all components receive: the options of the run,
// its log, its conditions, and the sockets that systemd's file descriptor store held during a
// restart.
type base struct {
	options Options
	started time.Time
	log     *slog.Logger
	logs    journal.Logs
	level   *slog.LevelVar
	board   *condition.Registry
	store   *fdstore.Store
}

// logOf returns the logger of a component, which adds the field component (OUTRIDER_COMPONENT= in
// the journal). Package agent itself logs as "agent".
func (b *base) logOf(part string) *slog.Logger { return b.log.With("component", part) }

// compose creates all components, each from those created before it, and runs none. It also binds
// the sockets; the lock of the runtime directory and xds.Listen protect them from another agent.
func compose(ctx context.Context, b *base, life *agentEnd, loaded *config.Loaded,
	received signals, notifier *systemd.Notifier,
) (*run, error) {
	c, state := loaded.Config, newReloadState(loaded)
	reachable := &lifecycle.Readiness{} // ready once other agents can query this one
	e, connected, err := newEpochs(ctx, b, c, state,
		hostconflict.NewReachableTime(reachable.Ready()))
	if err != nil {
		return nil, err
	}
	w, err := newIdentity(b, c, e)
	if err != nil {
		return nil, err
	}
	m, err := newMesh(b, c, state, e, w)
	if err != nil {
		return nil, err
	}
	xdsSockets, sdsSockets, err := newSockets(b, c, e, m.upstream.xdsSwitch, w)
	if err != nil {
		return nil, err
	}
	proxy := epoch.NewProxy(e.supervisor, m.inForce.closed)
	if !c.Envoy.Enabled {
		proxy.SetReadinessWithoutEnvoy(func() (bool, string) {
			return readyWithoutEnvoy(state,
				w.Manager, m.inForce)
		})
	}
	checker := newHealth(b, c, captured{proxy, m.capture}, m.relay)
	disk := newDiskSpace(b, state, e.supervisor)
	all := composed{state: state, life: life, epochs: e, identity: w, mesh: m, proxy: proxy,
		health: checker}
	v := newViews(b, c, all)
	boots := &bootstraps{relay: m.relay, identity: w.Manager, state: state}
	maker := newSpecMaker(b, c, e.link, boots)
	maker.process = m.process.of
	var watched *configWatch
	if c.Reload.Watch {
		watched = newConfigWatch(c.Reload, b.logOf("watch"))
	}
	reloads := newReloader(
		reloadSource{options: b.options.Config, state: state, claims: e.claims, maker: maker,
			supervisor: e.supervisor, discovery: m.discovery, xds: m.xds},
		newRequester(c, e.supervisor),
		reloadEffects{base: b, state: state, watched: watched,
			held: &heldConfigs{identity: w, upstream: m.upstream}, keeper: e.link,
			supervisor: e.supervisor,
			levels:     epoch.NewLogLevelApplier(e.supervisor, b.board, b.logOf("epoch")),
			view:       v.admin, status: v.status, sts: v.sts, dns: m.dns, xdsSockets: xdsSockets,
			sdsSockets: sdsSockets, identity: w, upstream: m.upstream, grpc: m.grpc,
			health: checker, meshWatch: m.watch, discovery: m.discovery,
			endpoints: m.endpoints, diskSpace: disk},
		b.board, b.logOf("reload"), state)
	backend := newBackend(b, all, v, maker, reloads)
	socket := newAPI(b, c, backend, reachable)
	v.connections["socket"] = socket
	optional, err := optionalParts(b, c, m, v, watched, reloads, backend)
	if err != nil {
		return nil, err
	}
	handler := &signalHandler{signals: received, reloader: reloads,
		supervisor: e.supervisor, log: b.log, stopper: &stopper{base: b, life: life, state: state,
			supervisor: e.supervisor, capture: m.capture, health: checker, relay: m.relay}}
	start := &starter{base: b, state: state, claims: e.claims, maker: maker.Builder,
		bootstraps: boots,
		supervisor: e.supervisor, proxy: proxy, reloader: reloads, watched: watched}
	supervisor := supervision{e.supervisor, e.link}
	// sockets that only another version of the agent uses
	if err := b.store.CloseRemaining(); err != nil {
		b.log.Warn("cannot remove unused sockets from systemd's file descriptor store",
			"error", err)
	}
	return &run{base: b, life: life, state: state, link: e.link, capture: m.capture, dns: m.dns,
		pings: []pinger{{"reloader", reloads.Ping}, {"supervisor", e.supervisor.Ping}},
		stages: []stage{
			{ // certificates are read while the keeper starts
				parts: []lifecycle.Component{w, sdsSockets},
				then:  func(ctx context.Context) error { return awaitKeeper(ctx, b, c, e.link, connected) },
			},
			// the reloader is listed after the private socket and so stops before it: pending
			// requests of the socket wait for the reloader
			{
				parts: []lifecycle.Component{notifier, handler, e.link, socket, reloads,
					newEvents(b, proxy)},
				await: socket,
			},
			{parts: []lifecycle.Component{supervisor}, await: supervisor},
			{ // these components need the epochs that an earlier agent started
				parts: slices.Concat([]lifecycle.Component{m.discovery, m.relay, xdsSockets,
					v.admin, m.watch,
					m.tracker, m.unbound, m.exposure, m.endpoints, disk, checker}, optional,
					[]lifecycle.Component{m.capture, settingsReloads{m.process, reloads},
						&keyRights{state: state, board: b.board},
						&presented{identity: w.Manager, discovery: m.discovery,
							supervisor: e.supervisor, acknowledged: w.acknowledged,
							log: b.logOf("identity")},
						&systemd.StatusReporter{Notifier: notifier, Conditions: b.board,
							Agent: backend}}),
				then: start.begin,
			},
		},
	}, nil
}

// optionalParts returns the components that a configuration may disable.
func optionalParts(b *base, c *config.Config, m *meshParts, v *views, watched *configWatch,
	reloads *reloader, operations *backend,
) (optional []lifecycle.Component, err error) {
	if watched != nil {
		optional = append(optional, &fileReloads{watched, reloads})
	}
	if m.dns != nil {
		optional = append(optional, m.dns)
	}
	if v.sts != nil {
		optional = append(optional, v.sts)
	}
	if v.debug != nil {
		optional = append(optional, v.debug)
	}
	if v.status != nil {
		optional = append(optional, v.status)
	}
	if c.Bus.Enabled {
		onBus, err := newBus(b, operations)
		if err != nil {
			return nil, err
		}
		optional = append(optional, onBus)
	}
	return optional, nil
}
