package epoch

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"time"

	"outrider.org/outrider/agent/condition"
)

// note is what the keeper remembers of an epoch for the next agent.
type note struct {
	Number            int           `json:"number"`
	RestartEpoch      int           `json:"restart_epoch"`
	Lineage           int           `json:"lineage"`
	Root              int           `json:"root"`
	HotRestart        bool          `json:"hot_restart"`
	HotRestartVersion string        `json:"hot_restart_version"`
	Phase             Phase         `json:"phase"`
	Mode              Mode          `json:"mode"`
	Hash              string        `json:"hash"`
	Namespace         string        `json:"namespace,omitempty"` // "": an older agent's
	Reason            string        `json:"reason"`
	BootstrapPath     string        `json:"bootstrap_path"`
	BootstrapSum      string        `json:"bootstrap_sum,omitempty"` // see sumOf; "": an older agent's
	AdminAddress      string        `json:"admin_address"`
	Started           time.Time     `json:"started"`
	Live              time.Time     `json:"live"`
	Ends              time.Time     `json:"ends"`
	Child             string        `json:"child,omitempty"`
	AdminLost         bool          `json:"admin_lost,omitempty"`
	Drained           bool          `json:"drained,omitempty"`
	DrainEnds         time.Time     `json:"drain_ends,omitzero"`
	Asked             string        `json:"asked,omitempty"`
	Stopping          bool          `json:"stopping,omitempty"`
	Command           Command       `json:"command"`
	LiveTimeout       time.Duration `json:"live_timeout"`
	Drain             time.Duration `json:"drain"`
	ParentShutdown    time.Duration `json:"parent_shutdown"`
}

func noteOf(p *process) json.RawMessage {
	encoded, err := json.Marshal(note{
		Number: p.Number, RestartEpoch: p.RestartEpoch, Lineage: p.Lineage, Root: p.root,
		HotRestart: p.hot, HotRestartVersion: p.spec.HotRestartVersion, Phase: p.Phase, Mode: p.Mode, Hash: p.Hash, Namespace: p.Namespace,
		Reason: p.Reason, BootstrapPath: p.BootstrapPath, BootstrapSum: p.sum, AdminAddress: p.AdminAddress,
		Started: p.Started, Live: p.Live, Ends: p.Ends, Child: p.child,
		AdminLost: p.AdminLost, Drained: p.Drained, DrainEnds: p.DrainEnds, Asked: p.asked, Stopping: p.stopping, Command: p.command,
		LiveTimeout: p.spec.LiveTimeout, Drain: p.spec.Drain, ParentShutdown: p.spec.ParentShutdown,
	})
	if err != nil {
		return nil // a time outside of the years 0 to 9999: there is none
	}
	return encoded
}

// processOf is noteOf's reverse.
func processOf(n note, admin func(string) Admin) *process {
	p := &process{
		Epoch: Epoch{Number: n.Number, RestartEpoch: n.RestartEpoch, Lineage: n.Lineage, Phase: n.Phase, Mode: n.Mode,
			Hash: n.Hash, Namespace: n.Namespace, Reason: n.Reason, BootstrapPath: n.BootstrapPath, AdminAddress: n.AdminAddress,
			Started: n.Started, Live: n.Live, Ends: n.Ends, AdminLost: n.AdminLost, Drained: n.Drained, DrainEnds: n.DrainEnds},
		spec: &Spec{Hash: n.Hash, HotRestartVersion: n.HotRestartVersion, Namespace: n.Namespace, LiveTimeout: n.LiveTimeout, Drain: n.Drain,
			ParentShutdown: n.ParentShutdown},
		admin: admin(n.AdminAddress), root: n.Root, hot: n.HotRestart, child: n.Child, asked: n.Asked, stopping: n.Stopping,
		command: n.Command, sum: n.BootstrapSum, ended: make(chan struct{}),
	}
	// An older agent's undrain left the listeners to close.
	p.Drained = p.Drained || !p.DrainEnds.IsZero()
	thaw(p)
	return p
}

// annotate has the keeper remember what changed of an epoch.
func (s *Supervisor) annotate(p *process) {
	if !p.alive() {
		return
	}
	encoded := noteOf(p)
	if err := s.ask(func(ctx context.Context, k Keeper) error { return k.Annotate(ctx, p.ID, encoded) }); err != nil {
		s.log.Warn("the keeper did not take a note", "epoch", p.Number, "error", err)
	}
}

// forget has the keeper forget a process that ended.
func (s *Supervisor) forget(id string) {
	if err := s.ask(func(ctx context.Context, k Keeper) error { return k.Forget(ctx, id) }); err != nil {
		s.log.Warn("the keeper did not forget an ended process", "id", id, "error", err)
	}
}

// event tells everybody, and the log.
func (s *Supervisor) event(kind string, p *process, sentence string, fields map[string]string) {
	s.options.Board.Publish(condition.Event{Kind: kind, Epoch: &p.Number, Sentence: sentence, Fields: maps.Clone(fields)})
	level := slog.LevelInfo
	switch {
	case kind == condition.KindGaveUp:
		level = slog.LevelError
	case kind == condition.KindEpochExited && p.asked == "" && p.Exit != nil && (p.Exit.Code != 0 || p.Exit.Signal != ""):
		level = slog.LevelWarn
	}
	s.log.Log(s.running, level, sentence, "epoch", p.Number, "event", kind)
}
