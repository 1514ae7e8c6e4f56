package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/apitest"
)

// Wrong arguments are refused before the server is contacted. Tests with a server are in
// cmd/outriderd.
func TestJoin_Usage(t *testing.T) {
	const files = " --token token --ca root.pem"
	for arguments, want := range map[string]string{
		"":                                "accepts 1 arg(s), received 0",
		"mesh.test":                       "join needs --token FILE and --ca FILE",
		"mesh.test --token token":         "join needs --token FILE and --ca FILE",
		"http://mesh.test/" + files:       "is not HOST or HOST:PORT",
		"mesh.test," + files:              "is not HOST or HOST:PORT",
		"mesh.test --group web" + files:   "--group web is not NAMESPACE/NAME",
		"mesh.test --group shop/" + files: "--group shop/ is not NAMESPACE/NAME",
		"mesh.test --timeout 0s" + files:  "--timeout 0s is not positive",
	} {
		code, _, errors := newMachine(t, nil).outrider(append([]string{"join"},
			strings.Fields(arguments)...)...)
		if code != api.ExitUsage || !strings.Contains(errors, want) {
			t.Errorf("join %s: exit %d: %s; want %s", arguments, code, errors, want)
		}
	}
}

func TestJoin_AddressesHaveAPort(t *testing.T) {
	got, err := meshAddresses("mesh.test,10.0.0.1:15112,fd00::1,[fd00::2]:1")
	want := "[mesh.test:15012 10.0.0.1:15112 [fd00::1]:15012 [fd00::2]:1]"
	if text := strings.Join(got, " "); err != nil || "["+text+"]" != want {
		t.Errorf("%s, %v; want %s", text, err, want)
	}
}

// A join is refused if the agent does not run and its unit cannot be started, or if Envoy runs
// without the agent.
func TestJoin_StateOfTheUnit(t *testing.T) {
	for _, test := range []struct {
		active, group, want string
	}{
		{"", "", "systemd has no unit outrider.service; start the agent"},
		{"activating", "", "outrider.service is activating; wait until the agent answers"},
		{"failed", "0::/outrider.slice/outrider-envoy.service\n",
			"but Envoy does; start the agent first: systemctl start outrider.service"},
		{"inactive", "", "cannot read the token: "},
	} {
		m := newMachine(t, nil)
		m.unit.User, m.unit.Active, m.proc = "nobody", test.active, filepath.Join(m.dir, "proc")
		m.write("etc/outrider.toml", "")
		if test.group != "" {
			m.write("proc/7/cgroup", test.group)
			m.write("proc/7/comm", "envoy\n")
		}
		code, _, errors := m.outrider("join", "mesh.test", "--token", filepath.Join(m.dir, "token"),
			"--ca", "root.pem")
		if code != api.ExitRefused || !strings.Contains(errors, test.want) {
			t.Errorf("%q: exit %d: %s; want %s", test.active, code, errors, test.want)
		}
	}
}

// A host that has joined cannot join again while its certificate is valid, or while its agent does
// not run. Two joins cannot run at the same time.
func TestJoin_Twice(t *testing.T) {
	backend := &apitest.Backend{StatusValue: api.Status{PID: os.Getpid(),
		Discovery:  api.Discovery{Address: "mesh.test:15012"},
		Identities: []api.Identity{{Name: "default", NotAfter: time.Now().Add(time.Hour)}}}}
	for _, running := range []bool{true, false} {
		m := newMachine(t, nil)
		want := "this host has joined a mesh already; start the agent, or run \"outrider leave\" first"
		if running {
			m = newMachine(t, backend)
			want = "this host has joined the mesh of mesh.test:15012 already, with a certificate until "
		}
		backend.StatusValue.ConfigFiles = []string{m.write("etc/outrider.toml", "")}
		m.write("etc/conf.d/90-join.toml", "")
		m.unit.User, m.unit.Active = "nobody", "inactive"
		h, err := m.app(nil, nil).meshHost(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := h.mayJoin(time.Now()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
		if _, err := m.app(nil, nil).meshHost(t.Context()); err == nil ||
			!strings.Contains(err.Error(), "another \"outrider join\"") {
			t.Errorf("at the same time: %v", err)
		}
		h.close()
	}
}

// A join or leave that was killed leaves files behind, or an agent that still uses the mesh's
// configuration. Another join is refused if the drop-in is left or in use. "outrider leave" removes
// everything.
func TestJoin_Killed(t *testing.T) {
	for name, test := range map[string]struct {
		files  []string
		loaded bool // the agent's configuration includes the drop-in
		mayNot string
	}{
		"join before the drop-in":    {[]string{"join/root.pem", "join/token"}, false, ""},
		"join before the reload":     {[]string{"join/token", "conf.d/90-join.toml"}, false, "interrupted"},
		"leave after the drop-in":    {[]string{"join/root.pem", "join/token"}, true, "has joined"},
		"leave before the reload":    {nil, true, "has joined"},
		"neither a join nor a leave": {nil, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			backend := &apitest.Backend{StatusValue: api.Status{PID: os.Getpid()}}
			m := newMachine(t, backend)
			main := m.write("etc/outrider.toml", "")
			backend.StatusValue.ConfigFiles = []string{main}
			if test.loaded {
				backend.StatusValue.ConfigFiles = append(backend.StatusValue.ConfigFiles,
					filepath.Join(filepath.Dir(main), "conf.d/90-join.toml"))
				backend.StatusValue.Identities = []api.Identity{{Name: "default",
					NotAfter: time.Now().Add(time.Hour)}}
			}
			var paths []string
			for _, file := range test.files {
				paths = append(paths, m.write("etc/"+file, ""))
			}
			h, err := m.app(nil, nil).meshHost(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			err = h.mayJoin(time.Now())
			h.close()
			if (err == nil) != (test.mayNot == "") ||
				err != nil && !strings.Contains(err.Error(), test.mayNot) {
				t.Errorf("join: %v, want %q", err, test.mayNot)
			}
			code, out, errors := m.outrider("leave")
			reloads := 1
			if len(test.files) == 0 && !test.loaded {
				reloads = 0
			}
			if code != 0 || len(backend.ReloadRequests()) != reloads {
				t.Errorf("leave: exit %d, %d reloads: %s%s", code, len(backend.ReloadRequests()),
					out, errors)
			}
			if slices.ContainsFunc(paths, exists) {
				t.Errorf("some of %v are left: %s", paths, out)
			}
		})
	}
}
