package agent

import (
	"context"
	"errors"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/backoff"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/hostconflict"
	"outrider.org/outrider/agent/sockdiag"
)

// hostOf returns this host with the functions that find other agents, Envoys and listeners
// on it.
func hostOf(options config.Options) hostconflict.Host {
	return hostconflict.Host{ConfigDir: options.ConfigDirectory, Query: queryAgent,
		EnvoyLives: envoyLives,
		Sockets:    sockdiag.ListeningSockets, ListenerProgram: hostconflict.ProgramOf}
}

// An agent that ends closes connections without a response, then removes its socket. A query
// without a response is therefore repeated, at most queryAttempts times.
const (
	queryAttempts = 20
	queryPause    = 50 * time.Millisecond
)

// queryAgent requests the status of the agent in a runtime directory from its socket, which every
// user may read. It returns false if no agent runs there.
func queryAgent(ctx context.Context, runtimeDir string) (hostconflict.OtherAgent, bool) {
	client := api.NewClient(filepath.Join(runtimeDir, api.SocketName))
	defer client.Close()
	status, err := client.Status(ctx)
	for attempt := 1; err != nil; attempt++ {
		_, absent := errors.AsType[*api.NotRunningError](err)
		_, refused := errors.AsType[*api.Error](err)
		if absent || refused || attempt == queryAttempts ||
			backoff.Sleep(ctx, queryPause) != nil {
			return hostconflict.OtherAgent{}, !absent
		}
		status, err = client.Status(ctx)
	}
	agent := hostconflict.OtherAgent{Started: status.ReachableSince, Claims: status.Claims}
	for _, e := range status.Epochs {
		agent.Serves = agent.Serves || e.State != api.EpochExited
	}
	return agent, true
}

// envoyLivesTime bounds the connection to an Envoy's admin socket.
const envoyLivesTime = 200 * time.Millisecond

// envoyLives reports whether an Envoy accepts connections on an admin socket in the keeper's folder
// of a runtime directory. It does not ask the keeper, because socket activation would start one.
func envoyLives(runtimeDir string) bool {
	sockets, err := filepath.Glob(filepath.Join(keeperFolder(runtimeDir),
		epoch.AdminSocketPrefix+"*.sock"))
	if err != nil {
		return false
	}
	for _, socket := range sockets {
		if connection, err := net.DialTimeout("unix", socket, envoyLivesTime); err == nil {
			_ = connection.Close()
			return true
		}
	}
	return false
}

// hostClaims checks whether other programs on this host use a port, socket or base ID that a
// configuration claims.
type hostClaims struct {
	options  config.Options
	state    *reloadState
	link     *epoch.KeeperLink
	presence *hostconflict.ReachableTime
}

// check returns an error if another program on this host holds a claim that the configuration
// needs. live reports whether an Envoy of this agent serves.
func (h *hostClaims) check(ctx context.Context, loaded *config.Loaded, live bool) error {
	report := hostOf(h.options).Check(ctx, h.self(loaded, live))
	if len(report.Conflicts) > 0 {
		return report.Conflicts
	}
	return nil
}

// self describes this agent, with the configuration to apply, for the conflict check.
func (h *hostClaims) self(loaded *config.Loaded, live bool) hostconflict.AgentToCheck {
	wants := *loaded
	wants.Config = config.RetainRestartKeys(h.state.started, loaded.Config)
	return hostconflict.AgentToCheck{
		OtherAgent: hostconflict.OtherAgent{Started: h.presence.Since(), Serves: live,
			Claims: h.state.InForce().Config.Claims()},
		Name: h.options.Instance, Config: &wants, EnvoyUID: h.link.Connection().Info().UID,
	}
}

// obstacle returns an error that names the programs listening on ports that Envoy needs, or nil. It
// must be called only while no Envoy of this agent is live.
func (h *hostClaims) obstacle() error {
	err := hostOf(h.options).CheckOtherPrograms(h.self(h.state.InForce(), false))
	if err == nil {
		return nil
	}
	return errors.New(strings.Join(reasons(err), "; "))
}

// checkConflicts returns the conflicts of a configuration that is checked and not applied. Claims
// of an agent that already runs on this configuration do not count.
func checkConflicts(ctx context.Context, options config.Options) (hostconflict.Report, error) {
	options.CheckOnly = true
	loaded, err := config.Load(options)
	if err != nil {
		return hostconflict.Report{}, err
	}
	self := hostconflict.AgentToCheck{Name: options.Instance, Config: loaded,
		EnvoyUID: os.Geteuid()}
	self.OtherAgent, _ = queryAgent(ctx, loaded.Config.Paths.RuntimeDir)
	if envoys, err := user.Lookup(loaded.Config.Envoy.User); err == nil {
		if uid, err := strconv.Atoi(envoys.Uid); err == nil {
			self.EnvoyUID = uid
		}
	}
	return hostOf(options).Check(ctx, self), nil
}
