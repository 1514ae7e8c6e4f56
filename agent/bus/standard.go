package bus

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/godbus/dbus/v5"
)

// standardHandlers returns the methods of the standard D-Bus interfaces.
func (s *session) standardHandlers() map[string]map[string]handler {
	return map[string]map[string]handler{
		peerName: {
			"Ping":         func(context.Context, *call) ([]any, error) { return nil, nil },
			"GetMachineId": machineID,
		},
		introspectName:    {"Introspect": s.introspect},
		propertiesName:    {"Get": s.get, "GetAll": s.getAll, "Set": s.set},
		objectManagerName: {"GetManagedObjects": s.managedObjects},
	}
}

func machineID(context.Context, *call) ([]any, error) {
	id, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		return nil, fmt.Errorf("read the machine ID: %w", err)
	}
	return []any{text(strings.TrimSpace(string(id)))}, nil
}

func (s *session) introspect(ctx context.Context, c *call) ([]any, error) {
	children := s.state.get(ctx).children(c.path)
	return []any{s.interfaces.introspect(interfacesOf(c.path, c.object), children)}, nil
}

// get implements Properties.Get.
func (s *session) get(ctx context.Context, c *call) ([]any, error) {
	property, err := s.property(c, c.args[0].(string), c.args[1].(string))
	if err != nil {
		return nil, err
	}
	if value, ok := c.object.values[property.Name]; ok {
		return []any{dbus.MakeVariant(value)}, nil
	}
	return []any{s.values(ctx, c.object)[property.Name]}, nil
}

// getAll implements Properties.GetAll. The standard interfaces have no properties.
func (s *session) getAll(ctx context.Context, c *call) ([]any, error) {
	name := c.args[0].(string)
	if name == "" || name == c.object.kind {
		return []any{s.values(ctx, c.object)}, nil
	}
	for _, standard := range interfacesOf(c.path, c.object) {
		if name == standard {
			return []any{map[string]dbus.Variant{}}, nil
		}
	}
	return nil, unknownInterface(c, name)
}

// set implements Properties.Set. All properties are read-only.
func (s *session) set(_ context.Context, c *call) ([]any, error) {
	property, err := s.property(c, c.args[0].(string), c.args[1].(string))
	if err != nil {
		return nil, err
	}
	return nil, &Error{Name: errorReadOnly, Message: fmt.Sprintf("%s is read only", property.Name)}
}

// property returns a property of the called object; kind "" is its own interface.
func (s *session) property(c *call, kind, name string) (*propertyOfXML, error) {
	if kind != "" && s.interfaces[kind] == nil {
		return nil, unknownInterface(c, kind)
	}
	if kind == "" || kind == c.object.kind {
		if property := s.interfaces[c.object.kind].property(name); property != nil {
			return property, nil
		}
	}
	return nil, &Error{Name: errorUnknownProperty,
		Message: fmt.Sprintf("%s has no property %q", c.path, text(name))}
}

func unknownInterface(c *call, name string) error {
	return &Error{Name: errorUnknownInterface,
		Message: fmt.Sprintf("%s has no interface %q", c.path, text(name))}
}

// managedObjects implements ObjectManager.GetManagedObjects: all objects below the manager.
func (s *session) managedObjects(ctx context.Context, _ *call) ([]any, error) {
	managed := map[dbus.ObjectPath]map[string]map[string]dbus.Variant{}
	for path, o := range s.state.get(ctx).objects {
		if path != managerPath {
			managed[path] = map[string]map[string]dbus.Variant{o.kind: s.values(ctx, o)}
		}
	}
	return []any{managed}, nil
}

// values returns all properties of an object, including measured ones.
func (s *session) values(ctx context.Context, o object) map[string]dbus.Variant {
	all := variants(o.values)
	if o.kind == epochInterface {
		var measured Epoch
		for _, epoch := range s.figures.get(ctx) {
			if epoch.ID == o.id {
				measured = epoch
			}
		}
		maps.Copy(all, variants(figureValues(measured)))
	}
	return all
}

func variants(values map[string]any) map[string]dbus.Variant {
	all := make(map[string]dbus.Variant, len(values))
	for name, value := range values {
		all[name] = dbus.MakeVariant(value)
	}
	return all
}
