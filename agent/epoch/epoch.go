package epoch

import "outrider.org/outrider/agent/epoch/record"

// Epoch is one Envoy process with its number.
type Epoch = record.Epoch

// State is the state of an epoch.
type State = record.State

// The states.
const (
	Starting    = record.Starting
	Live        = record.Live
	HandingOver = record.HandingOver
	Draining    = record.Draining
	Stopping    = record.Stopping
	Exited      = record.Exited
)

// Mode says how an epoch came to serve.
type Mode = record.Mode

// The modes.
const (
	First      = record.First
	Hot        = record.Hot
	SideBySide = record.SideBySide
	Unchanged  = record.Unchanged
)
