package epoch

import "outrider.org/outrider/agent/epoch/record"

// Epoch is one Envoy process with its number.
type Epoch = record.Epoch

// State is the state of an epoch.
type State = record.State

// States of an epoch.
const (
	StateStarting    = record.StateStarting
	StateLive        = record.StateLive
	StateHandingOver = record.StateHandingOver
	StateDraining    = record.StateDraining
	StateStopping    = record.StateStopping
	StateExited      = record.StateExited
)

// Mode is the way in which an epoch was started.
type Mode = record.Mode

// Modes in which an epoch is started.
const (
	FirstStart = record.FirstStart
	HotRestart = record.HotRestart
	SideBySide = record.SideBySide
	NoNewEpoch = record.NoNewEpoch
)
