package bootstrap_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/bootstrap"
	"outrider.org/outrider/bootstrap/render"
	"outrider.org/outrider/scripts/parts"
)

var program string // path of outrider-bootstrap

func TestMain(m *testing.M) {
	folder, err := parts.RunBuildScript(nil, "programs", "./cmd/outrider-bootstrap")
	program = filepath.Join(folder, "outrider-bootstrap")
	code := 1
	if err == nil {
		code = m.Run()
		err = goleak.Find()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// everything returns an input with a value of each type that a request can contain.
func everything() bootstrap.Input {
	return bootstrap.Input{
		Node: bootstrap.Node{
			Type: "sidecar", ID: "vm1.default", ServiceCluster: "web",
			Domain: "default.svc.cluster.local",
			IPs:    []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1%eth0")},
			Labels: map[string]string{"app": "web"},
			Metadata: map[string]any{
				"whole": int64(9007199254740991), "part": 0.1, "yes": true,
				"list":  []any{"a", map[string]any{"b": int64(1)}},
				"since": time.Date(2026, 11, 21, 1, 2, 3, 4, time.UTC),
			},
		},
		Discovery:      bootstrap.Discovery{Socket: "/run/outrider/envoy/xds.sock", Delta: true},
		ConnectTimeout: 1500 * time.Millisecond,
		Prometheus:     "0.0.0.0:15090", Ready: bootstrap.ReadyListener{Address: ":15021",
			Backend: "127.0.0.1:15020"},
		Tracing: &bootstrap.Tracing{Provider: bootstrap.TracerZipkin,
			Service: bootstrap.Server{Address: "zipkin:9411"}, Sampling: 12.5},
	}
}

func file(name, content string) *bootstrap.File {
	return &bootstrap.File{Path: name, Content: []byte(content)}
}

func TestProgram_RendersLikeThePackage(t *testing.T) {
	const admin = `{"admin": {"address": {"pipe": {"path": "{{.admin_socket}}"}}}, "node": {"id": {{toJSON .nodeID}}, "metadata": {{toJSON .metadata}}}}`
	for name, request := range map[string]bootstrap.Request{
		"built":    {Input: everything()},
		"override": {Input: everything(), Override: file("o.yaml", "node: {cluster: another}")},
		"template": {Input: everything(), Template: file("t.tmpl", admin)},
		"custom": {Custom: file("c.yaml",
			"admin: {address: {socket_address: {address: 127.0.0.1, port_value: 9901}}}")},
	} {
		t.Run(name, func(t *testing.T) {
			want, err := render.FromRequest(request)
			if err != nil {
				t.Fatal(err)
			}
			got, err := (&bootstrap.RenderProgram{Path: program}).Render(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmp.Transformer("text",
				func(b []byte) string { return string(b) })); diff != "" {
				t.Errorf("-in this process +in its own:\n%s", diff)
			}
			if custom := request.Custom != nil; custom != (got.AdminAddress == "127.0.0.1:9901") ||
				custom != (got.AdminAddress != "") {
				t.Errorf("its admin interface is at %q", got.AdminAddress)
			}
		})
	}
}

func TestRendered_HasTheSocketOfTheEpoch(t *testing.T) {
	rendered, err := render.FromRequest(bootstrap.Request{Input: everything()})
	if err != nil {
		t.Fatal(err)
	}
	const socket = `/run/a "folder"/admin-7.sock`
	text, err := rendered.WithAdminSocket(socket)
	if err != nil {
		t.Fatal(err)
	}
	var decoded struct {
		Admin struct {
			Address struct{ Pipe struct{ Path string } }
		}
	}
	if err := json.Unmarshal(text, &decoded); err != nil ||
		decoded.Admin.Address.Pipe.Path != socket {
		t.Errorf("%+v, %v", decoded, err)
	}
	if strings.Contains(string(text), bootstrap.AdminSocketPlaceholder) {
		t.Errorf("no epoch's socket is left in\n%s", text)
	}
	if _, err := rendered.WithAdminSocket("/" + strings.Repeat("x",
		bootstrap.MaxSocketPath)); err == nil ||
		!strings.Contains(err.Error(), "runtime_dir") {
		t.Errorf("a path that is too long: %v", err)
	}
}

// An error in a user's template, or a limit that rendering it exceeds, is reported with the name of
// the file.
func TestProgram_Faults(t *testing.T) {
	double := `{{$x := "0123456789abcdef"}}{{range 40}}{{$x = printf "%s%s" $x $x}}{{end}}{{$x}}`
	for name, test := range map[string]struct{ template, want string }{
		"wrong": {"{\n{{ if }}\n}", "a:b.tmpl:2: missing value for if"},
		"without end": {"{{range 1000000000000000}}{{end}}{}",
			"a:b.tmpl: rendering it takes more than 1s"},
		"without size": {double, "a:b.tmpl: rendering it takes more than 256 MiB of memory"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &bootstrap.RenderProgram{Path: program, MemoryLimit: 256 << 20}
			if name == "without end" {
				p.CPULimit = time.Second
			}
			_, err := p.Render(t.Context(), bootstrap.Request{Input: everything(),
				Template: file("a:b.tmpl", test.template)})
			if _, ok := errors.AsType[*bootstrap.Error](err); !ok || err.Error() != test.want {
				t.Errorf("got %v (%T)", err, err)
			}
		})
	}
}

func TestProgram_LargeBootstrap(t *testing.T) {
	var text strings.Builder
	text.WriteString(`{"admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 9901}}}, "static_resources": {"clusters": [`)
	for i := range 16 << 20 / 128 {
		if i > 0 {
			text.WriteByte(',')
		}
		_, _ = fmt.Fprintf(&text, `{"name": "cluster-%06d", "connect_timeout": "1s", "type": "STATIC", "alt_stat_name": "a name that makes it longer, %06d"}`+"\n", i, i)
	}
	text.WriteString("]}}")
	start := time.Now()
	rendered, err := (&bootstrap.RenderProgram{Path: program}).Render(t.Context(),
		bootstrap.Request{Custom: file("large.json", text.String())})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes of %d in %v", len(rendered.Text), text.Len(), time.Since(start))
}

func TestProgram_KeepsLowerMemoryLimit(t *testing.T) {
	limited := filepath.Join(t.TempDir(), "limited")
	if err := os.WriteFile(limited, []byte("#!/bin/sh\nulimit -d 262144 && exec "+program+"\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	if _, err := (&bootstrap.RenderProgram{Path: limited}).Render(t.Context(),
		bootstrap.Request{Input: everything()}); err != nil {
		t.Error(err)
	}
}

func TestProgram_Failures(t *testing.T) {
	script := func(text string) string {
		path := filepath.Join(t.TempDir(), "program")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
		return path
	}
	notExecutable, noProgram := filepath.Join(t.TempDir(), "program"),
		filepath.Join(t.TempDir(), "program")
	for path, mode := range map[string]os.FileMode{notExecutable: 0o600, noProgram: 0o700} {
		if err := os.WriteFile(path, []byte("no program"), mode); err != nil {
			t.Fatal(err)
		}
	}
	refused := everything()
	refused.Node.ID = ""
	for name, test := range map[string]struct {
		path  string
		input bootstrap.Input
		want  string
	}{
		"input":  {program, refused, "bootstrap: the node's ID is missing"},
		"killed": {script("kill -KILL $$"), everything(), "signal: killed"},
		"another": {script(`cat >/dev/null; echo '{"Unable": "restart outriderd"}'`), everything(),
			"restart outriderd"},
		"absent":   {"/nonexistent/program", everything(), "/nonexistent/program: no such file"},
		"not exec": {notExecutable, everything(), "permission denied"},
		"no ELF":   {noProgram, everything(), "exec format error"},
		"not here": {"", everything(),
			"outrider-bootstrap can be executed; install it at one of these paths"},
		"fails": {script("cat >/dev/null; echo why >&2; exit 3"), everything(),
			"exit status 3: why"},
		"mute":  {script("cat >/dev/null"), everything(), "unexpected end of JSON input"},
		"empty": {script("cat >/dev/null; echo '{}'"), everything(), "is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := (&bootstrap.RenderProgram{Path: test.path}).Render(t.Context(),
				bootstrap.Request{Input: test.input})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
			failed, itsOwn := errors.AsType[*bootstrap.RenderProgramError](err)
			if itsOwn == (name == "input") {
				t.Errorf("taken for the program's (%t): %v", itsOwn, err)
			}
			if itsOwn && failed.Missing != slices.Contains([]string{"absent", "not exec", "no ELF",
				"not here"}, name) {
				t.Errorf("missing: %t", failed.Missing)
			}
		})
	}
}

func TestProgram_WaitEndsWithContext(t *testing.T) {
	folder := t.TempDir()
	slow, asked := filepath.Join(folder, "slow"), filepath.Join(folder, "asked")
	if err := os.WriteFile(slow, []byte("#!/bin/sh\necho >"+asked+"\nexec sleep 600\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	if err := unix.Mkfifo(asked, 0o600); err != nil {
		t.Fatal(err)
	}
	p := &bootstrap.RenderProgram{Path: slow}
	first, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := p.Render(first, bootstrap.Request{Input: everything()})
		ended <- err
	}()
	if _, err := os.ReadFile(asked); err != nil { // wait until the program runs
		t.Error(err)
	}
	second, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Render(second, bootstrap.Request{Input: everything()}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("the second: %v", err)
	}
	end()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the first: %v", err)
	}
}

func TestProgram_KeepsTheLastResult(t *testing.T) {
	copied := filepath.Join(t.TempDir(), "program")
	if err := os.Link(program, copied); err != nil {
		t.Fatal(err)
	}
	p := &bootstrap.RenderProgram{Path: copied}
	first, err := p.Render(t.Context(), bootstrap.Request{Input: everything()})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(copied); err != nil {
		t.Fatal(err)
	}
	if again, err := p.Render(t.Context(),
		bootstrap.Request{Input: everything()}); again != first || err != nil {
		t.Errorf("the same question: %p and not %p, %v", again, first, err)
	}
	other := everything()
	other.Node.ID = "vm2.default"
	if _, err := p.Render(t.Context(), bootstrap.Request{Input: other}); err == nil {
		t.Error("another question got the answer of the first")
	}
}
