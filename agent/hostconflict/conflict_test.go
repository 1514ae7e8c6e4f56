package hostconflict

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/sockdiag"
)

const envoyUID = 990

// street is a host with the configurations of several instances and their fake responses.
type street struct {
	Host
	t       *testing.T
	running map[string]OtherAgent // responses by runtime directory
	envoys  []string
	sockets []sockdiag.Socket
}

func newStreet(t *testing.T, files map[string]string) *street {
	s := &street{t: t, running: map[string]OtherAgent{}}
	s.Host = Host{
		ConfigDir: t.TempDir(),
		Query: func(_ context.Context, runtimeDir string) (OtherAgent, bool) {
			a, ok := s.running[runtimeDir]
			return a, ok
		},
		EnvoyLives: func(runtimeDir string) bool { return slices.Contains(s.envoys, runtimeDir) },
		Sockets:    func() ([]sockdiag.Socket, error) { return s.sockets, nil },
		ListenerProgram: func(socket sockdiag.Socket) string {
			return strings.Repeat("nginx.service", int(socket.CGroup))
		},
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(s.ConfigDir, name+".toml"), []byte(text),
			0o644); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *street) load(name string) *config.Loaded {
	s.t.Helper()
	loaded, err := config.Load(config.Options{ConfigDirectory: s.ConfigDir, Instance: name,
		Environment: func(string) string { return "" }})
	if err != nil {
		s.t.Fatal(err)
	}
	return loaded
}

// runs makes an instance respond with its configuration.
func (s *street) runs(name string, serves bool, started int64) {
	s.t.Helper()
	s.running[config.RuntimeDir(name)] = OtherAgent{Started: time.Unix(started, 0), Serves: serves,
		Claims: s.load(name).Config.Claims()}
}

// elsewhere configures ports that no other instance uses.
const elsewhere = "envoy.admin_port = 16000\nstatus.address = \":16020\"\n" +
	"status.ready_port = 16021\n"

func TestCheck(t *testing.T) {
	const apart = elsewhere + "telemetry.prometheus_address = \"0.0.0.0:16090\"\n"
	stranger := sockdiag.Socket{Address: netip.MustParseAddrPort("127.0.0.1:16090"), UID: 65534}
	for _, c := range []struct {
		name      string
		a         string // configuration of the other agent; the checked agent's is const apart
		setup     func(*street, *AgentToCheck)
		conflicts []string // one for each line of the error
		warnings  []string
	}{
		{"nothing in common", "", func(s *street, _ *AgentToCheck) { s.runs("a", true, 1) }, nil,
			nil},
		{"another agent that does not run", apart, func(*street, *AgentToCheck) {}, nil,
			[]string{
				"b.toml: instance \"a\" (outrider@a.service), which does not run, is configured with the " +
					"same envoy.admin_port (port 16000 of 127.0.0.1)"}},
		{"one that runs", "telemetry.prometheus_address = \"127.0.0.1:16090\"",
			func(s *street, _ *AgentToCheck) { s.runs("a", true, 1) },
			[]string{
				`b.toml:4:1: telemetry.prometheus_address: port 16090 of 0.0.0.0 is taken by ` +
					`telemetry.prometheus_address (port 16090 of 127.0.0.1) of instance "a" ` +
					`(outrider@a.service), which runs; give one of the two another`},
			nil},
		{"another key of it", "status.ready_port = 16020",
			func(s *street, _ *AgentToCheck) { s.runs("a", true, 1) },
			[]string{
				`status.address: port 16020 of all addresses is taken by status.ready_port (port 16020 of ` +
					`127.0.0.1) of instance "a"`},
			nil},
		{"only its Envoy runs", "envoy.admin_port = 16000",
			func(s *street, _ *AgentToCheck) { s.envoys = []string{"/run/outrider/a"} },
			[]string{
				`envoy.admin_port: port 16000 of 127.0.0.1 is taken by envoy.admin_port of instance "a" ` +
					`(outrider@a.service), whose agent does not run, but whose Envoy does`},
			nil},
		{"it does not answer, and its file is old enough", "envoy.admin_port = 16000",
			func(s *street, _ *AgentToCheck) { s.running["/run/outrider/a"] = OtherAgent{} },
			[]string{"envoy.admin_port"}, nil},
		{"a folder", "paths.state_dir = \"/var/lib/outrider/b\"",
			func(s *street, _ *AgentToCheck) { s.runs("a", true, 1) },
			[]string{
				`paths.state_dir: /var/lib/outrider/b is taken by paths.state_dir of instance "a"`},
			nil},
		{"interception", "[capture]\nmode = \"redirect\"\nunits = [\"web.service\"]",
			func(s *street, self *AgentToCheck) {
				s.runs("a", true, 1)
				file := filepath.Join(s.ConfigDir, "b.toml")
				text, err := os.ReadFile(file)
				if err != nil {
					s.t.Fatal(err)
				}
				if err := os.WriteFile(file, append(text, "[capture]\nmode = \"redirect\"\n"+
					"units = [\"system.slice\"]\n"...), 0o644); err != nil {
					s.t.Fatal(err)
				}
				self.Config = s.load("b")
			},
			[]string{"b.toml:6:1: capture.mode: port 15001 of all addresses is taken by capture.mode of " +
				"instance \"a\" (outrider@a.service), which runs; set capture.mode = \"none\" in one of " +
				"the two", "capture.mode: port 15006"}, nil},
		{"both start, it began earlier", "envoy.admin_port = 16000",
			func(s *street,
				_ *AgentToCheck) {
				s.runs("a", false, 1)
			}, []string{"envoy.admin_port"}, nil},
		{"both start, it began later", "envoy.admin_port = 16000",
			func(s *street, _ *AgentToCheck) { s.runs("a", false, 9) }, nil, nil},
		{"it began later and serves already", "envoy.admin_port = 16000",
			func(s *street,
				_ *AgentToCheck) {
				s.runs("a", true, 9)
			}, []string{"envoy.admin_port"}, nil},
		{"a reload that changes nothing of it", "envoy.admin_port = 16000",
			func(s *street, self *AgentToCheck) {
				s.runs("a", true, 1)
				self.Serves, self.Claims = true, self.Config.Config.Claims()
			}, nil, nil},
		{"a reload that takes what a starting one wants", "envoy.admin_port = 16000",
			func(s *street, self *AgentToCheck) { s.runs("a", false, 9); self.Serves = true },
			[]string{"envoy.admin_port"}, nil},
		{"broken", "nonsense = 1",
			func(s *street,
				_ *AgentToCheck) {
				s.running["/run/outrider/a"] = OtherAgent{}
			}, nil, nil},
		{"a stranger", "", func(s *street, _ *AgentToCheck) {
			s.sockets = []sockdiag.Socket{stranger,
				stranger}
		},
			[]string{
				"telemetry.prometheus_address: port 16090 of 0.0.0.0 is taken: a program of user nobody " +
					"listens on 127.0.0.1:16090; end it"},
			nil},
		{"a stranger who is known", "", func(s *street, _ *AgentToCheck) {
			s.sockets = []sockdiag.Socket{{Address: stranger.Address, UID: 65534, CGroup: 1}}
		},
			[]string{"is taken: nginx.service of user nobody listens on 127.0.0.1:16090; end it"},
			nil},
		{"what is ours", "", func(s *street, self *AgentToCheck) {
			s.sockets = []sockdiag.Socket{stranger}
			self.Serves, self.Claims = true, self.Config.Config.Claims()
		}, nil, nil},
		{"where the agent itself listens until Envoy serves", "", func(s *street,
			self *AgentToCheck) {
			s.sockets = []sockdiag.Socket{stranger}
			self.Serves, self.Claims = true,
				[]config.HostClaim{{Key: "envoy.admin_port", Host: "127.0.0.1", Port: 16090}}
		},
			[]string{
				"telemetry.prometheus_address: port 16090 of 0.0.0.0 is taken: a program of user nobody " +
					"listens on 127.0.0.1:16090, as envoy.admin_port in force says; put the change of " +
					"envoy.admin_port in force first, then this one"}, nil},
		{"an Envoy that ends", "",
			func(s *street, _ *AgentToCheck) {
				s.sockets = []sockdiag.Socket{{Address: stranger.Address,
					UID: envoyUID}}
			}, nil, nil},
		{"the agent says itself where it cannot listen", "", func(s *street, _ *AgentToCheck) {
			s.sockets = []sockdiag.Socket{{Address: netip.MustParseAddrPort("127.0.0.1:16000")}}
		}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStreet(t, map[string]string{"a": c.a, "b": apart,
				"discoveryd": "reserved = true"})
			self := AgentToCheck{Name: "b", Config: s.load("b"), EnvoyUID: envoyUID,
				OtherAgent: OtherAgent{Started: time.Unix(5, 0)}}
			c.setup(s, &self)
			report := s.Check(t.Context(), self)
			for _, list := range []struct {
				what string
				got  config.Errors
				want []string
			}{{"clashes", report.Conflicts, c.conflicts}, {"warnings", report.Warnings, c.warnings}} {
				if len(list.got) != len(list.want) {
					t.Errorf("%s: %v, want %q", list.what, list.got, list.want)
					continue
				}
				for i, got := range list.got {
					if !strings.Contains(got.Error(), list.want[i]) {
						t.Errorf("%s: %s\nwant %s", list.what, got, list.want[i])
					}
				}
			}
		})
	}
}

// TestOneOfTwoGoesFirst starts two instances at the same time and lets both check: exactly one has
// precedence.
func TestOneOfTwoGoesFirst(t *testing.T) {
	same := "envoy.admin_port = 16000\nstatus.address = \"\"\ntelemetry.prometheus_address = \"\""
	for _, started := range []struct{ a, b int64 }{{1, 2}, {2, 1}, {1, 1}} {
		s := newStreet(t, map[string]string{"a": same, "b": same})
		s.runs("a", false, started.a)
		s.runs("b", false, started.b)
		refused := 0
		for name, at := range map[string]int64{"a": started.a, "b": started.b} {
			self := AgentToCheck{Name: name, Config: s.load(name), EnvoyUID: envoyUID,
				OtherAgent: OtherAgent{Started: time.Unix(at, 0)}}
			refused += min(1, len(s.Check(t.Context(), self).Conflicts))
		}
		if refused != 1 {
			t.Errorf("%+v: %d are refused", started, refused)
		}
	}
}
