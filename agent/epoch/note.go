package epoch

import (
	"encoding/json"
	"time"
)

// note is the state of an epoch that the keeper stores, so that the agent can restore it after a
// restart of the agent.
type note struct {
	Epoch
	RestartEpoch      int           `json:"restart_epoch"`
	Lineage           int           `json:"lineage"`
	Root              int           `json:"root"`
	HotRestart        bool          `json:"hot_restart"`
	HotRestartVersion string        `json:"hot_restart_version"`
	Phase             State         `json:"phase"`
	Hash              string        `json:"hash"`
	Namespace         string        `json:"namespace,omitempty"`
	BootstrapSum      string        `json:"bootstrap_sum"` // result of sumOf
	AdminAddress      string        `json:"admin_address"`
	Ends              time.Time     `json:"ends"`
	Child             ender         `json:"child,omitempty"`
	AdminLost         bool          `json:"admin_lost,omitempty"`
	Drained           bool          `json:"drained,omitempty"`
	DrainEnds         time.Time     `json:"drain_ends,omitzero"`
	Ending            string        `json:"asked,omitempty"` // value of process.ending
	Stopping          bool          `json:"stopping,omitempty"`
	Command           Command       `json:"command"`
	LiveTimeout       time.Duration `json:"live_timeout"`
	Drain             time.Duration `json:"drain"`
	ParentShutdown    time.Duration `json:"parent_shutdown"`
}

func noteOf(p *process) json.RawMessage {
	encoded, err := json.Marshal(note{
		Epoch: p.Epoch, RestartEpoch: p.RestartEpoch, Lineage: p.Lineage, Root: p.root,
		HotRestart: p.hot, HotRestartVersion: p.spec.HotRestartVersion, Phase: p.State,
		Hash: p.SpecDigest, Namespace: p.MeshNamespace, BootstrapSum: p.sum, AdminAddress: p.AdminAddress,
		Ends: p.LatestDrainEnd, Child: p.endedBy, AdminLost: p.AdminLost, Drained: p.DrainRequested,
		DrainEnds: p.ListenersCloseAt, Ending: p.ending, Stopping: p.stopBegun, Command: p.command,
		LiveTimeout: p.spec.LiveTimeout, Drain: p.spec.DrainTime, ParentShutdown: p.spec.ParentShutdownTime,
	})
	if err != nil {
		return nil // JSON cannot encode a time outside the years 0 to 9999: store no note
	}
	return encoded
}

// processOf is the inverse of noteOf. Its result can be started again only after makeStartable.
func processOf(n note) *process {
	p := &process{
		Epoch: n.Epoch,
		launchState: launchState{root: n.Root, hot: n.HotRestart, command: n.Command,
			sum: n.BootstrapSum, spec: &Spec{Digest: n.Hash, HotRestartVersion: n.HotRestartVersion,
				Namespace: n.Namespace, LiveTimeout: n.LiveTimeout, DrainTime: n.Drain,
				ParentShutdownTime: n.ParentShutdown}},
		exitState: exitState{endedBy: n.Child, ending: n.Ending, stopBegun: n.Stopping},
	}
	p.RestartEpoch, p.Lineage, p.State, p.SpecDigest = n.RestartEpoch, n.Lineage, n.Phase, n.Hash
	p.MeshNamespace, p.AdminAddress, p.LatestDrainEnd = n.Namespace, n.AdminAddress, n.Ends
	p.AdminLost, p.DrainRequested, p.DrainTime, p.ListenersCloseAt = n.AdminLost, n.Drained, n.Drain, n.DrainEnds
	return p
}
