package bus

import (
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"
)

const manager = string(managerPath)

func TestBusctlReadsAsAnyUser(t *testing.T) {
	d, _ := running(t)
	for _, uid := range []uint32{0, nobody} {
		for property, want := range map[string]string{
			"Version":             `s "1.2.3"`,
			"Ready":               `b true`,
			"CurrentEpoch":        `u 0`,
			"ConfigFiles":         `as 1 "/etc/outrider/outrider.toml"`,
			"Conditions":          `a(ssts) 0`,
			"LastReloadTimestamp": `t 0`,
		} {
			if got := d.must(uid, "get-property", wellKnownName, manager, managerInterface,
				property); got != want {
				t.Errorf("uid %d: %s is %s, want %s", uid, property, got, want)
			}
		}
		for property, want := range map[string]string{
			"StartedTimestamp": `t 1772600767890123`, "ActiveConnections": `t 7`,
			"MemoryBytes": `t 1048576`, "PID": `u 4711`,
		} {
			if got := d.must(uid, "get-property", wellKnownName, manager+"/epoch/0", epochInterface,
				property); got != want {
				t.Errorf("uid %d: %s is %s, want %s", uid, property, got, want)
			}
		}
	}
	if got := d.must(nobody, "call", wellKnownName, manager, managerInterface,
		"ListEpochs"); got != `a(uosut) 1 0 "/org/outrider/Agent1/epoch/0" "live" 4711 1772600767890123` {
		t.Errorf("ListEpochs: %s", got)
	}
	if got := d.must(nobody, "call", wellKnownName, manager, managerInterface, "GetEpoch", "u",
		"0"); got != `o "/org/outrider/Agent1/epoch/0"` {
		t.Errorf("GetEpoch: %s", got)
	}
	tree := d.must(nobody, "tree", "--list", wellKnownName)
	want := "/\n/org\n/org/outrider\n/org/outrider/Agent1\n/org/outrider/Agent1/epoch\n" +
		"/org/outrider/Agent1/epoch/0\n/org/outrider/Agent1/secret\n" +
		"/org/outrider/Agent1/secret/file_2dcert_3aweb"
	if diff := cmp.Diff(want, tree); diff != "" {
		t.Errorf("tree:\n%s", diff)
	}
	introspected := d.must(nobody, "introspect", wellKnownName, manager)
	for _, line := range []string{".Reload", ".ReloadFinished", ".PropertiesChanged",
		".GetManagedObjects", ".GetMachineId"} {
		if !strings.Contains(introspected, line) {
			t.Errorf("introspect shows no %s:\n%s", line, introspected)
		}
	}
	if objects := d.must(nobody, "call", wellKnownName, manager, objectManagerName,
		"GetManagedObjects"); !strings.HasPrefix(objects, "a{oa{sa{sv}}} 2 ") {
		t.Errorf("GetManagedObjects: %s", objects)
	}
}

func TestRootChangesWithoutPolkit(t *testing.T) {
	d, a := running(t)
	calls := []struct {
		object    string
		arguments []string
		want      string
	}{
		{manager, []string{managerInterface, "Reload", "t", "0"}, "t 1"},
		{manager, []string{managerInterface, "Reload", "t", "1"}, "t 2"},
		{manager, []string{managerInterface, "Drain", "t", "0"}, ""},
		{manager, []string{managerInterface, "Undrain"}, ""},
		{manager, []string{managerInterface, "SetLogLevel", "ss", "envoy:http", "debug"}, ""},
		{manager, []string{managerInterface, "CheckConfig", "s", "/x.toml"}, "bas true 0"},
		{manager + "/epoch/0", []string{epochInterface, "Abort"}, ""},
	}
	for _, c := range calls {
		if got := d.must(0,
			append([]string{"call", wellKnownName, c.object}, c.arguments...)...); got != c.want {
			t.Errorf("%v: %s, want %s", c.arguments, got, c.want)
		}
	}
	want := []string{"reload false", "reload true", "drain", "undrain",
		"level {Agent: Envoy: Components:map[http:debug]}", "check /x.toml", "abort 0"}
	if diff := cmp.Diff(want, a.requests()); diff != "" {
		t.Errorf("requests:\n%s", diff)
	}
	if got := d.must(0, "call", wellKnownName, manager, managerInterface,
		"DumpConfig"); !strings.Contains(got, `a\357\277\275b\357\277\275`) {
		t.Errorf("a configuration that is not UTF-8 came as %s", got)
	}
	a.set(func() { a.problems = []string{"x.toml:1:2: node.id: is missing"} })
	if got := d.must(0, "call", wellKnownName, manager, managerInterface, "CheckConfig", "s",
		""); got != `bas false 1 "x.toml:1:2: node.id: is missing"` {
		t.Errorf("CheckConfig: %s", got)
	}
}

func TestWhatIsWrongIsToldByName(t *testing.T) {
	d, a := running(t)
	conn := d.connect()
	cases := []struct {
		path, method string
		arguments    []any
		backend      error
		want         string
	}{
		{manager, managerInterface + ".Reload", []any{uint64(2)}, nil,
			errorPrefix + "InvalidArgument"},
		{manager, managerInterface + ".Drain", []any{uint64(1)}, nil,
			errorPrefix + "InvalidArgument"},
		{manager, managerInterface + ".SetLogLevel", []any{"envoy:", "info"}, nil,
			errorPrefix + "InvalidArgument"},
		{manager, managerInterface + ".CheckConfig", []any{"relative.toml"}, nil,
			errorPrefix + "InvalidArgument"},
		{manager, managerInterface + ".GetEpoch", []any{uint32(9)}, nil,
			errorPrefix + "NoSuchEpoch"},
		{manager, managerInterface + ".Undrain", nil, refusedError("no"), errorPrefix + "Refused"},
		{manager, managerInterface + ".Undrain", nil, busyError("no"), errorPrefix + "Busy"},
		{manager, managerInterface + ".Undrain", nil, errUndecodable, errorPrefix + "Failed"},
		{manager + "/epoch/0", epochInterface + ".Abort", nil, noSuchEpochError(0),
			errorPrefix + "NoSuchEpoch"},
		{manager, managerInterface + ".Reload", []any{"a string"}, nil, errorInvalidArgs},
		{manager, managerInterface + ".Reload", nil, nil, errorInvalidArgs},
		{manager, managerInterface + ".Nothing", nil, nil, errorUnknownMethod},
		{manager, epochInterface + ".Abort", nil, nil, errorUnknownInterface},
		{manager + "/epoch", propertiesName + ".GetAll", []any{""}, nil, errorUnknownInterface},
		{manager + "/epoch/9", epochInterface + ".Abort", nil, nil, errorUnknownObject},
		{manager, propertiesName + ".Get", []any{managerInterface, "Nothing"}, nil,
			errorUnknownProperty},
		{manager, propertiesName + ".Get", []any{"a.b", "Version"}, nil, errorUnknownInterface},
		{manager, propertiesName + ".GetAll", []any{epochInterface}, nil, errorUnknownInterface},
	}
	for _, c := range cases {
		a.set(func() { a.err = c.backend })
		err := conn.Object(wellKnownName, dbus.ObjectPath(c.path)).Call(c.method, 0,
			c.arguments...).Err
		if !isNamed(err, c.want) {
			t.Errorf("%s %s%v: %v, want %s", c.path, c.method, c.arguments, err, c.want)
		}
	}
	if out, err := d.busctl(0, "set-property", wellKnownName, manager, managerInterface, "Version",
		"s", "x"); err == nil || !strings.Contains(out, "read only") {
		t.Errorf("Set: %v %s", err, out)
	}
}

func TestEveryoneHasPeerAndMembersWithoutInterface(t *testing.T) {
	d, _ := running(t)
	conn := d.connect()
	var id string
	if err := conn.Object(wellKnownName, "/org").Call(peerName+".GetMachineId",
		0).Store(&id); err != nil || len(id) != 32 {
		t.Errorf("machine ID %q, %v", id, err)
	}
	message := &dbus.Message{Type: dbus.TypeMethodCall, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldDestination: dbus.MakeVariant(wellKnownName),
		dbus.FieldPath:        dbus.MakeVariant(managerPath),
		dbus.FieldMember:      dbus.MakeVariant("ListEpochs")}}
	if call := <-conn.Send(message, make(chan *dbus.Call, 1)).Done; call.Err != nil ||
		len(call.Body) != 1 {
		t.Errorf("ListEpochs of no interface: %v %v", call.Body, call.Err)
	}
	if err := conn.Object(wellKnownName, managerPath).Call(peerName+".Ping", 0).Err; err != nil {
		t.Error(err)
	}
}

func TestInstancesHaveNamesOfTheirOwn(t *testing.T) {
	for instance, want := range map[string]string{
		"": "org.outrider.Agent1", "web": "org.outrider.Agent1.Instance._web",
		"web-2": "org.outrider.Agent1.Instance._web_2d2",
		"9":     "org.outrider.Agent1.Instance.__39", "a_b": "org.outrider.Agent1.Instance._a_5fb",
	} {
		if got := WellKnownName(instance); got != want {
			t.Errorf("%q: %s, want %s", instance, got, want)
		}
	}
	d, a := running(t)
	second := newAgent()
	second.state.Instance = "web-2"
	server, _ := second.startAs(t, d, "web-2")
	await(t, server.Ready(), "the second name is taken")
	for _, uid := range []uint32{0, nobody} {
		if got := d.must(uid, "get-property", "org.outrider.Agent1.Instance._web_2d2", manager,
			managerInterface, "Instance"); got != `s "web-2"` {
			t.Errorf("uid %d: the instance is %s", uid, got)
		}
	}
	d.must(0, "call", "org.outrider.Agent1.Instance._web_2d2", manager, managerInterface, "Undrain")
	if len(a.requests()) != 0 || len(second.requests()) != 1 {
		t.Errorf("asked were %v and %v", a.requests(), second.requests())
	}
}
