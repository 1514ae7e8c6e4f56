package bus

import (
	"strings"
	"time"

	"outrider.org/outrider/agent/condition"
)

// signal is one of the Manager's.
type signal struct {
	name string
	args []any
}

// signalOf is the signal that tells an event; ok is false for events that the properties tell.
func signalOf(event condition.Event) (told signal, ok bool) {
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
		return signal{"EpochExited", append(args, text(field["cause"]), int32(integer(field["status"])))}, true
	case condition.KindReloadFinished:
		return signal{"ReloadFinished", []any{uint64(integer(field["id"])), text(field["outcome"]), epochNumber(event.Epoch),
			lines(field["reasons"]), texts(strings.Fields(field["pending"]))}}, true
	case condition.KindReloadRefused:
		return signal{"ReloadRefused", []any{lines(field["reasons"])}}, true
	case condition.KindDraining:
		return signal{"Draining", nil}, true
	case condition.KindStopping:
		return signal{"Draining", nil}, event.Epoch != nil // with no epoch there is nothing to drain
	case condition.KindSecretRotated:
		return signal{"SecretRotated", []any{text(field["resource"]), notAfter(field["not_after"])}}, true
	case condition.KindResourcesRefused:
		return signal{"ResourcesRefused", []any{text(field["type"]), text(field["error"])}}, true
	}
	return signal{}, false
}

// notAfter reads the time of a rotated secret, RFC 3339; 0 if there is none.
func notAfter(field string) uint64 {
	t, err := time.Parse(time.RFC3339, field)
	if err != nil {
		return 0
	}
	return microseconds(t)
}
