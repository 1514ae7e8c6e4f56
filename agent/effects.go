package agent

import (
	"context"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/mesh"
)

// reloadSource implements specSource with the configuration files and the checks of this host.
type reloadSource struct{ *Agent }

func (s reloadSource) Load() (*config.Loaded, error) { return config.Load(s.options.Config) }

func (s reloadSource) Check(ctx context.Context, loaded *config.Loaded) error {
	return s.checkClaims(ctx, loaded)
}

func (s reloadSource) Make(
	ctx context.Context, loaded *config.Loaded, to listener,
) (*wanted, error) {
	return s.maker.make(ctx, loaded, to)
}

func (s reloadSource) Loses(ctx context.Context) error { return s.lostCertificates(ctx) }

// reloadEffects implements effects with the agent's parts.
type reloadEffects struct{ *Agent }

func (e reloadEffects) Expect(id uint64, loaded *config.Loaded, files []string) {
	if e.watched != nil {
		e.watched.expect(id, loaded, files)
	}
}

func (e reloadEffects) Hold(id uint64, read *prepared) error {
	e.discovery.Expect(id, read.loaded.Config.Node.Namespace)
	e.viewPort.hold(id, read.wanted.spec)
	e.identity.Configure(e.identitySettings(read.loaded.Config))
	if err := e.sdsSockets.Hold(id, read.wanted.spec.Hash, read.loaded); err != nil {
		return err
	}
	return e.xdsSockets.Hold(id, read.wanted.spec.Hash, read.loaded)
}

func (e reloadEffects) Release(id uint64, refused bool) {
	if e.watched != nil {
		e.watched.over(id, refused)
	}
	e.identity.Configure(e.identitySettings(e.reloader.InForce().Config))
	e.sdsSockets.Release(id)
	e.xdsSockets.Release(id)
	e.viewPort.over(id)
	e.discovery.Over(id)
}

func (e reloadEffects) Follow(ctx context.Context, step func(string)) {
	step("Envoy's log levels")
	e.levels.follow(ctx)
}

// Enact configures each part with its [live] keys, and watches the files of the configuration.
func (e reloadEffects) Enact(
	ctx context.Context, old *config.Loaded, won *prepared, step func(string),
) {
	c := won.loaded.Config
	e.serving.Store(won.wanted.binary)
	step("xDS sockets")
	e.identity.Configure(e.identitySettings(c))
	e.sdsSockets.Configure(won.wanted.spec.Hash, c)
	e.xdsSockets.Configure(won.wanted.spec.Hash, c)
	if c.Log.Level != old.Config.Log.Level {
		e.level.Set(slogLevel(c.Log.Level))
	}
	step("Envoy's log levels")
	e.levels.Configure(ctx, c, won.wanted.spec)
	step("status address and admin view")
	if e.status != nil {
		e.status.SetConfig(statusConfig(c))
	}
	if err := e.view.SetConfig(viewConfig(c)); err != nil {
		e.logOf("status").Warn("cannot apply envoy.admin_port to the admin view", "error", err)
	}
	e.viewPort.update()
	step("watch of the mesh configuration")
	if err := e.meshWatch.Configure(c); err != nil { // before discovery reads the files
		e.log.Error("cannot watch the files of the mesh configuration", "error", err)
	}
	step("mesh configuration")
	if err := e.discovery.Configure(mesh.Settings(c)); err != nil {
		e.logOf("discovery").Error("cannot apply the settings of discovery", "error", err)
	}
	step("watch of the configuration")
	if e.watched != nil {
		e.watched.set(won.loaded, won.wanted.files)
	}
}
