package bus

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/godbus/dbus/v5"

	"outrider.org/outrider/agent/condition"
)

// emitter sends signals: for the differences between snapshots and for new events.
type emitter struct {
	conn       *dbus.Conn
	interfaces interfaces
	sent       *snapshot // the values that clients have, except for conditions
	conditions any       // the conditions that clients have
	sequence   uint64    // sequence number of the last processed event
}

// objects sends the differences between the last snapshot and now, at most one signal per object. A
// slow bus therefore receives fewer signals.
func (e *emitter) objects(now *snapshot) error {
	before := e.sent
	e.sent = now
	reported := now.reported != before.reported
	for _, path := range slices.Sorted(maps.Keys(before.objects)) {
		old := before.objects[path]
		if o, ok := now.objects[path]; ok && o.id == old.id {
			continue
		}
		if err := e.conn.Emit(managerPath, objectManagerName+".InterfacesRemoved", path,
			[]string{old.kind}); err != nil {
			return fmt.Errorf("emit the D-Bus signal InterfacesRemoved for %s: %w", path, err)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(now.objects)) {
		if err := e.object(path, before.objects, now.objects[path], reported); err != nil {
			return fmt.Errorf("emit the D-Bus signals for the change of %s: %w", path, err)
		}
	}
	if reported {
		e.conditions = now.objects[managerPath].values[conditionsProperty]
	}
	return nil
}

// object sends the difference between an object and its predecessor in before. It sends the
// conditions only if reported, that is, if an event has announced their change.
func (e *emitter) object(path dbus.ObjectPath, before map[dbus.ObjectPath]object, o object,
	reported bool) error {
	old, ok := before[path]
	if !ok || old.id != o.id {
		values := variants(o.values)
		if o.kind == epochInterface {
			// Omit the resource usage of a new epoch: it is measured when a client reads it.
			maps.Copy(values, variants(figureValues(Epoch{})))
		}
		return e.conn.Emit(managerPath, objectManagerName+".InterfacesAdded", path,
			map[string]map[string]dbus.Variant{o.kind: values})
	}
	changed := map[string]dbus.Variant{}
	for _, property := range e.interfaces[o.kind].Properties {
		value, ok := o.values[property.Name]
		known := old.values[property.Name]
		if property.Name == conditionsProperty {
			// The condition.Registry limits how often it publishes an event about a condition. A
			// condition whose text changes often must not cause more signals than events.
			ok = reported
			known = e.conditions
		}
		if ok && property.emitted() && !reflect.DeepEqual(value, known) {
			changed[property.Name] = dbus.MakeVariant(value)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	return e.conn.Emit(path, propertiesName+".PropertiesChanged", o.kind, changed, []string{})
}

// events sends signals for new events. missed is the number of events that the registry, which
// retains a limited number, had already dropped.
func (e *emitter) events(board *condition.Registry) (missed uint64, err error) {
	for _, event := range board.Events(e.sequence) {
		missed += event.Sequence - e.sequence - 1
		e.sequence = event.Sequence
		signal, ok := signalOf(event)
		if !ok {
			continue
		}
		if err := e.conn.Emit(managerPath, managerInterface+"."+signal.name,
			signal.args...); err != nil {
			return missed, fmt.Errorf("emit the D-Bus signal %s: %w", signal.name, err)
		}
	}
	return missed, nil
}
