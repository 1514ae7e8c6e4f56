package bus

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"outrider.org/outrider/agent/condition"
)

// noEpoch stands for an epoch's number where there is none.
const noEpoch uint32 = math.MaxUint32

// snapshot is what all objects show at one time. It is not changed once it is made.
type snapshot struct {
	objects map[dbus.ObjectPath]object
	epochs  []listedEpoch // as ListEpochs gives them
}

// object is one object with an interface of ours.
type object struct {
	id     string         // another one under the same path is another object
	kind   string         // its interface
	values map[string]any // of the properties, but for those measured when they are read
}

// listedEpoch is (uosut).
type listedEpoch struct {
	Number  uint32
	Path    dbus.ObjectPath
	State   string
	PID     uint32
	Started uint64
}

// listedCondition is (ssts).
type listedCondition struct {
	Code     string
	Severity string
	Since    uint64
	Sentence string
}

// newSnapshot shows a state.
func newSnapshot(state State, conditions []condition.Condition) *snapshot {
	shown := &snapshot{objects: map[dbus.ObjectPath]object{}}
	shown.objects[managerPath] = object{kind: managerInterface, values: managerValues(state, conditions)}
	for _, epoch := range slices.SortedStableFunc(slices.Values(state.Epochs), older) {
		shown.objects[epochPath(epoch.Number)] = object{id: epoch.ID, kind: epochInterface, values: epochValues(epoch)}
	}
	for _, secret := range state.Secrets {
		shown.objects[secretPath(secret.ResourceName)] = object{kind: secretInterface, values: secretValues(secret)}
	}
	for path, o := range shown.objects {
		if o.kind == epochInterface {
			v := o.values
			shown.epochs = append(shown.epochs, listedEpoch{Path: path, Number: v["Number"].(uint32), State: v["State"].(string),
				PID: v["PID"].(uint32), Started: v["StartedTimestamp"].(uint64)})
		}
	}
	slices.SortFunc(shown.epochs, func(a, b listedEpoch) int { return int(int64(a.Number) - int64(b.Number)) })
	return shown
}

// older orders epochs so that of those that share a number the one to be shown comes last: the one that lives, or the newest.
func older(a, b Epoch) int {
	if a.Exited.IsZero() != b.Exited.IsZero() {
		if b.Exited.IsZero() {
			return -1
		}
		return 1
	}
	return a.Started.Compare(b.Started)
}

func managerValues(state State, conditions []condition.Condition) map[string]any {
	listed := []listedCondition{}
	for _, c := range conditions {
		listed = append(listed, listedCondition{text(c.Code), text(string(c.Severity)), microseconds(c.Since), text(c.Sentence)})
	}
	return map[string]any{
		"Version":             text(state.Version),
		"Instance":            text(state.Instance),
		"UnitName":            text(state.UnitName),
		"State":               text(state.State),
		"Ready":               state.Ready,
		"ReadyReason":         text(state.ReadyReason),
		"EnvoyLive":           state.EnvoyLive,
		"Conditions":          listed,
		"CurrentEpoch":        epochNumber(state.CurrentEpoch),
		"EnvoyVersion":        text(state.EnvoyVersion),
		"ConfigFiles":         texts(state.ConfigFiles),
		"ConfigHash":          text(state.ConfigHash),
		"LastReloadTimestamp": microseconds(state.LastReload),
		"LastReloadOutcome":   text(state.LastReloadOutcome),
		"LastError":           text(state.LastError),
		"DiscoveryAddress":    text(state.DiscoveryAddress),
		"DiscoveryState":      text(state.DiscoveryState),
		"PendingRestartKeys":  texts(state.PendingRestartKeys),
	}
}

func epochValues(epoch Epoch) map[string]any {
	return map[string]any{
		"Number":           uint32(epoch.Number),
		"State":            text(string(epoch.State.Shown())),
		"PID":              uint32(epoch.PID),
		"Reason":           text(epoch.Reason),
		"BootstrapPath":    text(epoch.BootstrapPath),
		"StartedTimestamp": microseconds(epoch.Started),
		"LiveTimestamp":    microseconds(epoch.Live),
		"ExitedTimestamp":  microseconds(epoch.Exited),
		"ExitStatus":       int32(epoch.ExitStatus),
		"ExitSignal":       text(epoch.ExitSignal),
	}
}

// figureValues are the properties of an epoch that are measured when they are read.
func figureValues(figures Figures) map[string]any {
	return map[string]any{"ActiveConnections": figures.Connections, "MemoryBytes": figures.MemoryBytes}
}

func secretValues(secret Secret) map[string]any {
	return map[string]any{
		"ResourceName":       text(secret.ResourceName),
		"Source":             text(secret.Source),
		"SpiffeID":           text(secret.SpiffeID),
		"Issuer":             text(secret.Issuer),
		"Serial":             text(secret.Serial),
		"NotBeforeTimestamp": microseconds(secret.NotBefore),
		"NotAfterTimestamp":  microseconds(secret.NotAfter),
		"RenewalTimestamp":   microseconds(secret.Renewal),
	}
}

// children are the names of the nodes right below a path; none: neither the path nor anything below it is there.
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

// microseconds since 1970, as systemd tells time; 0 for no time.
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

// text is what D-Bus takes for a string: UTF-8 without NUL. The bus ends a connection that sends anything else.
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

// lines are the lines of a field of an event that holds several.
func lines(field string) []string {
	if field == "" {
		return []string{}
	}
	return texts(strings.Split(field, "\n"))
}

// integer is a number in a field of an event; 0 if it holds none.
func integer(field string) int64 {
	n, _ := strconv.ParseInt(field, 10, 64)
	return n
}
