package bus

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/godbus/dbus/v5"
)

// teller tells the bus what changed: by comparing what it told last with what is now, and by the events since.
type teller struct {
	conn       *dbus.Conn
	interfaces interfaces
	told       *snapshot
	sequence   uint64 // of the last event that was looked at
}

// objects tells the difference between what was told last and now. However much happened in between, it is one signal an
// object, so that a bus that is slow gets less, and not more.
func (t *teller) objects(now *snapshot) error {
	before := t.told
	t.told = now
	for _, path := range slices.Sorted(maps.Keys(before.objects)) {
		old := before.objects[path]
		if o, ok := now.objects[path]; ok && o.id == old.id {
			continue
		}
		if err := t.conn.Emit(managerPath, objectManagerName+".InterfacesRemoved", path, []string{old.kind}); err != nil {
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
			maps.Copy(values, variants(figureValues(Figures{}))) // it has just begun; they are measured when somebody reads them
		}
		return t.conn.Emit(managerPath, objectManagerName+".InterfacesAdded", path, map[string]map[string]dbus.Variant{o.kind: values})
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

// events tells the events since the last. The board keeps a bounded number of them: missed is how many were gone already.
func (t *teller) events(board Events) (missed uint64, err error) {
	for _, event := range board.Events(t.sequence) {
		missed += event.Sequence - t.sequence - 1
		t.sequence = event.Sequence
		told, ok := signalOf(event)
		if !ok {
			continue
		}
		if err := t.conn.Emit(managerPath, managerInterface+"."+told.name, told.args...); err != nil {
			return missed, fmt.Errorf("tell %s: %w", told.name, err)
		}
	}
	return missed, nil
}
