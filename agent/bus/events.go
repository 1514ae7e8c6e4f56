package bus

import (
	"strings"
	"time"

	"outrider.org/outrider/agent/condition"
)

// signal is a signal of the Manager interface.
type signal struct {
	name string
	args []any
}

// signalOf converts an event to a signal. ok is false if only properties reflect the event.
func signalOf(event condition.Event) (s signal, ok bool) {
	field := event.Fields
	switch event.Kind {
	case condition.KindEpochStarted, condition.KindEpochLive, condition.KindEpochExited:
		if event.Epoch == nil {
			return signal{}, false
		}
		args := []any{epochNumber(event.Epoch), epochPath(*event.Epoch)}
		switch event.Kind {
		case condition.KindEpochStarted:
			return signal{"EpochStarted", args}, true
		case condition.KindEpochLive:
			return signal{"EpochLive", args}, true
		}
		return signal{"EpochExited",
			append(args, text(field["cause"]), int32(integer(field["status"])))}, true
	case condition.KindReloadFinished:
		return signal{"ReloadFinished",
			[]any{uint64(integer(field["id"])), text(field["outcome"]), epochNumber(event.Epoch),
				lines(field["reasons"]), texts(strings.Fields(field["pending"]))}}, true
	case condition.KindReloadRefused:
		return signal{"ReloadRefused", []any{lines(field["reasons"])}}, true
	case condition.KindDraining:
		return signal{"Draining", nil}, true
	case condition.KindStopping:
		// a drain without an epoch has no signal
		return signal{"Draining", nil}, event.Epoch != nil
	case condition.KindSecretRotated:
		return signal{"SecretRotated",
			[]any{text(field["resource"]), notAfter(field["not_after"])}}, true
	case condition.KindResourcesRefused:
		return signal{"ResourcesRefused", []any{text(field["type"]), text(field["error"])}}, true
	}
	return signal{}, false
}

// notAfter converts the RFC 3339 expiry of a rotated secret to microseconds since 1970; 0 if
// invalid.
func notAfter(field string) uint64 {
	t, err := time.Parse(time.RFC3339, field)
	if err != nil {
		return 0
	}
	return microseconds(t)
}
