package bus

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/godbus/dbus/v5"
)

// teller sends signals: for the differences between snapshots and for new events.
type teller struct {
	conn       *dbus.Conn
	interfaces interfaces
	told       *snapshot
	sequence   uint64 // sequence number of the last processed event
}

// objects sends the differences between the last snapshot and now, at most one signal per object. A
// slow bus therefore receives fewer signals.
func (t *teller) objects(now *snapshot) error {
	before := t.told
	t.told = now
	for _, path := range slices.Sorted(maps.Keys(before.objects)) {
		old := before.objects[path]
		if o, ok := now.objects[path]; ok && o.id == old.id {
			continue
		}
		if err := t.conn.Emit(managerPath, objectManagerName+".InterfacesRemoved", path,
			[]string{old.kind}); err != nil {
			return fmt.Errorf("tell that %s is gone: %w", path, err)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(now.objects)) {
		if err := t.object(path, before.objects, now.objects[path]); err != nil {
			return fmt.Errorf("tell that %s changed: %w", path, err)
		}
	}
	return nil
}

func (t *teller) object(path dbus.ObjectPath, before map[dbus.ObjectPath]object, o object) error {
	old, ok := before[path]
	if !ok || old.id != o.id {
		values := variants(o.values)
		if o.kind == epochInterface {
			// The usage of a new epoch is measured when a client reads it.
			maps.Copy(values, variants(figureValues(Figures{})))
		}
		return t.conn.Emit(managerPath, objectManagerName+".InterfacesAdded", path,
			map[string]map[string]dbus.Variant{o.kind: values})
	}
	changed := map[string]dbus.Variant{}
	for _, property := range t.interfaces[o.kind].Properties {
		value, kept := o.values[property.Name]
		if kept && property.told() && !reflect.DeepEqual(value, old.values[property.Name]) {
			changed[property.Name] = dbus.MakeVariant(value)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	return t.conn.Emit(path, propertiesName+".PropertiesChanged", o.kind, changed, []string{})
}

// events sends signals for new events. missed is the number of events that the bounded board had
// already dropped.
func (t *teller) events(board Events) (missed uint64, err error) {
	for _, event := range board.Events(t.sequence) {
		missed += event.Sequence - t.sequence - 1
		t.sequence = event.Sequence
		told, ok := signalOf(event)
		if !ok {
			continue
		}
		if err := t.conn.Emit(managerPath, managerInterface+"."+told.name,
			told.args...); err != nil {
			return missed, fmt.Errorf("tell %s: %w", told.name, err)
		}
	}
	return missed, nil
}
