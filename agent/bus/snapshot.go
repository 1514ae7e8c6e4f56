package bus

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"outrider.org/outrider/agent/api"
)

// noEpoch is the epoch number that stands for "no epoch" on D-Bus.
const noEpoch uint32 = math.MaxUint32

// snapshot holds all objects at one time. It is immutable.
type snapshot struct {
	objects map[dbus.ObjectPath]object
	epochs  []listedEpoch // result of ListEpochs
	// reported is the sequence number of the last event about a condition before the state was
	// read.
	reported uint64
}

const conditionsProperty = "Conditions"

// object is an object with one of the agent's interfaces.
type object struct {
	id     string         // distinguishes successive objects with the same path
	kind   string         // interface
	values map[string]any // properties, except those measured on read
}

// listedEpoch is an element of ListEpochs, (uosut).
type listedEpoch struct {
	Number  uint32
	Path    dbus.ObjectPath
	State   string
	PID     uint32
	Started uint64
}

// listedCondition is an element of Conditions, (ssts).
type listedCondition struct {
	Code     string
	Severity string
	Since    uint64
	Sentence string
}

// newSnapshot returns a snapshot of a state. unit is the agent's systemd unit, or "".
func newSnapshot(state api.Status, unit string) *snapshot {
	shown := &snapshot{objects: map[dbus.ObjectPath]object{}}
	shown.objects[managerPath] = object{kind: managerInterface,
		values: managerValues(state, unit)}
	for _, epoch := range slices.SortedStableFunc(slices.Values(state.Epochs), older) {
		shown.objects[epochPath(epoch.Number)] = object{id: epoch.ID, kind: epochInterface,
			values: epochValues(epoch)}
	}
	for _, secret := range state.Identities {
		if secret.NotAfter.IsZero() {
			continue // no certificate yet; a condition reports why
		}
		shown.objects[secretPath(secret.Name)] = object{kind: secretInterface,
			values: secretValues(secret)}
	}
	for path, o := range shown.objects {
		if o.kind == epochInterface {
			v := o.values
			shown.epochs = append(shown.epochs,
				listedEpoch{Path: path, Number: v["Number"].(uint32), State: v["State"].(string),
					PID: v["PID"].(uint32), Started: v["StartedTimestamp"].(uint64)})
		}
	}
	slices.SortFunc(shown.epochs,
		func(a, b listedEpoch) int { return int(int64(a.Number) - int64(b.Number)) })
	return shown
}

// older is a comparison for sorting. Of epochs with the same number, the one to publish is last:
// the running one, or the newest.
func older(a, b Epoch) int {
	if a.Exited.IsZero() != b.Exited.IsZero() {
		if b.Exited.IsZero() {
			return -1
		}
		return 1
	}
	return a.Started.Compare(b.Started)
}

func managerValues(state api.Status, unit string) map[string]any {
	last := api.LastReload{}
	if state.LastReload != nil {
		last = *state.LastReload
	}
	listed := []listedCondition{}
	for _, c := range state.Conditions {
		listed = append(listed, listedCondition{text(c.Code), text(string(c.Severity)),
			microseconds(c.Since), text(c.Sentence)})
	}
	return map[string]any{
		"Version":             text(state.Version),
		"Instance":            text(state.Instance),
		"UnitName":            text(unit),
		"State":               text(string(state.State)),
		"Ready":               state.Ready,
		"ReadyReason":         text(state.NotReadyReason),
		"EnvoyLive":           state.Envoy.Live,
		conditionsProperty:    listed,
		"CurrentEpoch":        epochNumber(state.CurrentEpoch),
		"EnvoyVersion":        text(state.Envoy.Version),
		"ConfigFiles":         texts(state.ConfigFiles),
		"ConfigHash":          text(state.ConfigHash),
		"LastReloadTimestamp": microseconds(last.Time),
		"LastReloadOutcome":   text(string(last.Outcome)),
		"LastError":           text(strings.Join(last.Reasons, "; ")),
		"DiscoveryAddress":    text(state.Discovery.Address),
		"DiscoveryState":      text(state.Discovery.State),
		"Capture":             text(state.Capture),
		"PendingRestartKeys":  texts(state.KeysPendingRestart),
	}
}

func epochValues(epoch Epoch) map[string]any {
	return map[string]any{
		"Number":           uint32(epoch.Number),
		"State":            text(string(epoch.State.PublicState())),
		"PID":              uint32(epoch.PID),
		"Reason":           text(epoch.Reason),
		"BootstrapPath":    text(epoch.BootstrapPath),
		"StartedTimestamp": microseconds(epoch.Started),
		"LiveTimestamp":    microseconds(epoch.LiveSince),
		"ExitedTimestamp":  microseconds(epoch.Exited),
		"ExitStatus":       int32(epoch.ExitStatus),
		"ExitSignal":       text(epoch.ExitSignal),
	}
}

// figureValues returns the properties of an epoch that are measured on read.
func figureValues(epoch Epoch) map[string]any {
	return map[string]any{"ActiveConnections": epoch.Connections, "MemoryBytes": epoch.MemoryBytes}
}

func secretValues(secret api.Identity) map[string]any {
	return map[string]any{
		"ResourceName":       text(secret.Name),
		"Source":             text(secret.Source),
		"SpiffeID":           text(secret.SPIFFEID),
		"Issuer":             text(secret.Issuer),
		"Serial":             text(secret.Serial),
		"NotBeforeTimestamp": microseconds(secret.NotBefore),
		"NotAfterTimestamp":  microseconds(secret.NotAfter),
		"RenewalTimestamp":   microseconds(secret.Renewal),
	}
}

// children returns the names of the nodes directly below a path. If there are none, no object
// exists below the path.
func (s *snapshot) children(path dbus.ObjectPath) []string {
	below := strings.TrimSuffix(string(path), "/") + "/"
	names := map[string]struct{}{}
	for at := range s.objects {
		if rest, ok := strings.CutPrefix(string(at), below); ok {
			name, _, _ := strings.Cut(rest, "/")
			names[name] = struct{}{}
		}
	}
	return slices.Collect(maps.Keys(names))
}

// microseconds returns t as microseconds since 1970, like systemd's timestamps; 0 for the zero
// time.
func microseconds(t time.Time) uint64 {
	if t.IsZero() || t.UnixMicro() < 0 {
		return 0
	}
	return uint64(t.UnixMicro())
}

func epochNumber(number *int) uint32 {
	if number == nil || *number < 0 {
		return noEpoch
	}
	return uint32(*number)
}

// text replaces invalid UTF-8 and NUL, because the bus disconnects senders of such strings.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

func texts(all []string) []string {
	clean := make([]string, 0, len(all))
	for _, s := range all {
		clean = append(clean, text(s))
	}
	return clean
}

// lines splits a multi-line event field.
func lines(field string) []string {
	if field == "" {
		return []string{}
	}
	return texts(strings.Split(field, "\n"))
}

// integer parses a number in an event field; 0 if invalid.
func integer(field string) int64 {
	n, _ := strconv.ParseInt(field, 10, 64)
	return n
}
