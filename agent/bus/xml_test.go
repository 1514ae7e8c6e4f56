package bus

import (
	"encoding/xml"
	"maps"
	"slices"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/condition"
)

func readAll(t *testing.T) interfaces {
	t.Helper()
	all, err := readInterfaces()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func TestEveryMethodOfTheXMLIsServedAndNoOther(t *testing.T) {
	all := readAll(t)
	s := newSession(Options{}, all)
	if diff := cmp.Diff(sorted(all), sorted(s.handlers)); diff != "" {
		t.Errorf("interfaces (-XML +code):\n%s", diff)
	}
	for name, description := range all {
		var methods []string
		for _, method := range description.Methods {
			methods = append(methods, method.Name)
		}
		slices.Sort(methods)
		if diff := cmp.Diff(methods, sorted(s.handlers[name])); diff != "" {
			t.Errorf("methods of %s (-XML +code):\n%s", name, diff)
		}
	}
}

func TestEveryPropertyOfTheXMLHasAValueOfItsType(t *testing.T) {
	all, a := readAll(t), newAgent()
	a.board.Raise("x", condition.Info, "a sentence")
	shown := newSnapshot(a.State(t.Context()), "outrider.service")
	for path, o := range shown.objects {
		values := maps.Clone(o.values)
		if o.kind == epochInterface {
			maps.Copy(values, figureValues(Epoch{}))
		}
		types, want := map[string]string{}, map[string]string{}
		for name, value := range values {
			types[name] = dbus.SignatureOf(value).String()
		}
		for _, property := range all[o.kind].Properties {
			want[property.Name] = property.Type
			if property.Access != "read" {
				t.Errorf("%s.%s: access %s, but nothing can be set", o.kind, property.Name,
					property.Access)
			}
			if _, measured := figureValues(Epoch{})[property.Name]; measured && property.emitted() {
				t.Errorf("%s.%s is never told, and its annotation does not say so", o.kind,
					property.Name)
			}
		}
		if diff := cmp.Diff(want, types); diff != "" {
			t.Errorf("%s (-XML +code):\n%s", path, diff)
		}
	}
}

func TestEverySignalOfTheXMLIsSentWithItsTypesAndNoOther(t *testing.T) {
	want, sent := map[string]string{}, map[string]string{}
	for _, s := range readAll(t)[managerInterface].Signals {
		want[s.Name] = ""
		for _, arg := range s.Args {
			want[s.Name] += arg.Type
		}
	}
	for _, kind := range []string{condition.KindEpochStarted, condition.KindEpochLive,
		condition.KindEpochExited, condition.KindReloadStarted,
		condition.KindReloadFinished, condition.KindReloadRefused, condition.KindDraining,
		condition.KindUndrained, condition.KindStopping,
		condition.KindSecretRotated, condition.KindResourcesRefused, condition.KindDiscoveryMoved,
		condition.KindMeshProblem,
		condition.KindRestartsExhausted,
		condition.KindConditionRaised, condition.KindConditionCleared} {
		if told, ok := signalOf(condition.Event{Kind: kind, Epoch: number(3)}); ok {
			sent[told.name] = dbus.SignatureOf(told.args...).String()
		}
	}
	if diff := cmp.Diff(want, sent); diff != "" {
		t.Errorf("signals (-XML +code):\n%s", diff)
	}
}

func TestSignalsCarryWhatEventsSay(t *testing.T) {
	cases := map[string]struct {
		event condition.Event
		want  []any
	}{
		"EpochExited": {condition.Event{Kind: condition.KindEpochExited, Epoch: number(3),
			Fields: map[string]string{"cause": "crashed", "status": "139"}},
			[]any{uint32(3), dbus.ObjectPath("/org/outrider/Agent1/epoch/3"),
				"crashed", int32(139)}},
		"ReloadFinished": {condition.Event{Kind: condition.KindReloadFinished,
			Fields: map[string]string{"id": "12", "outcome": "refused",
				"reasons": "one\ntwo \xff"}},
			[]any{uint64(12), "refused", noEpoch, []string{"one", "two \uFFFD"}, []string{}}},
		"Draining": {condition.Event{Kind: condition.KindStopping, Epoch: number(3)}, nil},
		"ReloadRefused": {condition.Event{Kind: condition.KindReloadRefused,
			Fields: map[string]string{"reasons": ""}}, []any{[]string{}}},
		"SecretRotated": {condition.Event{Kind: condition.KindSecretRotated,
			Fields: map[string]string{"resource": "default", "not_after": "2026-03-04T05:06:07Z"}},
			[]any{"default", uint64(1772600767000000)}},
	}
	for name, c := range cases {
		told, ok := signalOf(c.event)
		if !ok || told.name != name {
			t.Fatalf("%s: %v %v", name, told, ok)
		}
		if diff := cmp.Diff(c.want, told.args); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

// TestLiveIntrospectionIsTheXML compares the introspection data with the installed files.
func TestLiveIntrospectionIsTheXML(t *testing.T) {
	d, _ := running(t)
	conn, all := d.connect(), readAll(t)
	paths := map[dbus.ObjectPath]struct{ interfaces, children []string }{
		"/": {[]string{introspectName, peerName}, []string{"org"}},
		"/org/outrider": {[]string{introspectName, peerName},
			[]string{"Agent1"}},
		managerPath: {[]string{introspectName, objectManagerName, peerName,
			propertiesName, managerInterface}, []string{"epoch", "secret"}},
		managerPath + "/epoch": {[]string{introspectName, peerName}, []string{"0"}},
		epochPath(0): {[]string{introspectName, peerName, propertiesName,
			epochInterface}, nil},
		secretFolder + "file_2dcert_3aweb": {[]string{introspectName, peerName, propertiesName,
			secretInterface}, nil},
	}
	for path, want := range paths {
		var document string
		if err := conn.Object(wellKnownName, path).Call(introspectName+".Introspect",
			0).Store(&document); err != nil {
			t.Fatal(err)
		}
		var node struct {
			Interfaces []*description `xml:"interface"`
			Nodes      []struct {
				Name string `xml:"name,attr"`
			} `xml:"node"`
		}
		if err := xml.Unmarshal([]byte(document), &node); err != nil {
			t.Fatalf("%s: %v\n%s", path, err, document)
		}
		var names, children []string
		for _, live := range node.Interfaces {
			names = append(names, live.Name)
			if diff := cmp.Diff(all[live.Name], live); diff != "" {
				t.Errorf("%s %s (-file +live):\n%s", path, live.Name, diff)
			}
		}
		for _, child := range node.Nodes {
			children = append(children, child.Name)
		}
		slices.Sort(names)
		if diff := cmp.Diff(want.interfaces, names); diff != "" {
			t.Errorf("%s: interfaces\n%s", path, diff)
		}
		if diff := cmp.Diff(want.children, children); diff != "" {
			t.Errorf("%s: children\n%s", path, diff)
		}
	}
}
