package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/hostconflict"
	"outrider.org/outrider/agent/keeper"
)

// epochParts are the components of the agent that run Envoy.
type epochParts struct {
	link       *epoch.KeeperLink // to the keeper
	supervisor *epoch.Supervisor
	claims     *hostClaims
	user       *keeper.User          // Envoy's user; nil: the user of this process
	own        func(uid uint32) bool // reports whether a user is Envoy's, the agent's or root
}

// newEpochs creates the supervisor and connects to the keeper in the background: opened receives
// the result.
func newEpochs(
	ctx context.Context, b *base, c *config.Config, state *reloadState,
	presence *hostconflict.ReachableTime,
) (e *epochParts, opened <-chan error, err error) {
	user, err := envoyUser(c)
	if err != nil {
		return nil, nil, err
	}
	link := newLink(b, c, user)
	connected := make(chan error, 1)
	go func() { connected <- openKeeper(ctx, link) }()
	claims := &hostClaims{options: b.options.Config, state: state, link: link, presence: presence}
	supervisor := epoch.New(epoch.Options{
		Admin:      func(address string) epoch.Admin { return link.Admin(address) },
		Conditions: b.board, Logger: b.logOf("epoch"), Config: c.Envoy,
		ExplainExit:   envoy.ExplainExit,
		StartObstacle: claims.obstacle,
	})
	link.SetSupervisor(supervisor)
	return &epochParts{link: link, supervisor: supervisor, claims: claims, user: user,
		own: ownUsers(c, link)}, connected, nil
}

// supervision runs the supervisor with the keeper to which the link is connected.
type supervision struct {
	*epoch.Supervisor
	link *epoch.KeeperLink
}

// Run implements lifecycle.Component.
func (s supervision) Run(ctx context.Context) error {
	return s.Supervisor.Run(ctx, s.link.Connection())
}

// liveEpoch returns the serving epoch; live is false if there is none.
func liveEpoch(supervisor *epoch.Supervisor) (e epoch.Epoch, live bool) {
	e, _, live = supervisor.Live()
	return e, live
}

// newLink returns the link to the keeper. Under systemd it uses the socket in the runtime
// directory; an agent in the foreground starts the keeper itself.
func newLink(b *base, c *config.Config, other *keeper.User) *epoch.KeeperLink {
	folder := keeperFolder(c.Paths.RuntimeDir)
	var dialer keeper.Dialer = keeper.LaunchingDialer{
		SocketDialer: keeper.SocketDialer(filepath.Join(folder, keeperSocket)),
		Options: keeper.LaunchOptions{Folder: folder, BaseID: uint32(c.Envoy.BaseID), User: other,
			Stderr: os.Stderr}}
	if b.options.Config.RunsInUnit {
		dialer = keeper.SocketDialer(filepath.Join(c.Paths.RuntimeDir, keeperSocket))
	}
	return epoch.NewKeeperLink(epoch.KeeperLinkOptions{Dialer: dialer, Logger: b.logOf("keeper"),
		EnvoyLog: b.logs.Envoy, ForwardLog: c.Log.IncludeEnvoy})
}

// openKeeper connects to the keeper. It returns an ExitError with ExitAlreadyRuns if the keeper
// serves another agent.
func openKeeper(ctx context.Context, link *epoch.KeeperLink) error {
	err := link.Connect(ctx)
	if errors.Is(err, keeper.ErrBusy) {
		return exitf(ExitAlreadyRuns, "another outriderd runs on this configuration: %w", err)
	}
	return err
}
