package blueprint

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/cloud"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/bootstrap"
	"outrider.org/outrider/bootstrap/render"
	"outrider.org/outrider/scripts/parts"
)

// host is a directory with a configuration and its files.
type host struct {
	t   *testing.T
	dir string
}

func newHost(t *testing.T) host { return host{t, parts.ShortDir(t)} }

func (h host) write(name, text string) string {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// thisHost returns a Builder that does not need outrider-bootstrap.
func thisHost() Builder {
	return Builder{Host: config.ThisHost(), ResolveAddress: resolveAddress,
		Cloud: &cloud.MetadataService{},
		RenderBootstrap: func(_ context.Context, request bootstrap.Request) (*bootstrap.Rendered,
			error) {
			return render.FromRequest(request)
		}}
}

// check checks outrider.toml with the given content. In the report, the directory is replaced by
// $DIR.
func (h host) check(toml string) CheckReport {
	h.t.Helper()
	h.write("outrider.toml", toml)
	return Check(h.t.Context(), config.Options{Path: filepath.Join(h.dir, "outrider.toml"),
		Environment: func(string) string { return "" }}, CheckOptions{Builder: thisHost()})
}

func (h host) clean(errs config.Errors) string {
	if len(errs) == 0 {
		return ""
	}
	return strings.ReplaceAll(errs.Error(), h.dir, "$DIR")
}

// withEnvoy returns the table [envoy] with the real Envoy.
func withEnvoy(t *testing.T, keys string) string {
	return fmt.Sprintf(
		"discovery.files = [\"/\"]\npaths.runtime_dir = \"/run/outrider-check\"\n[envoy]\nbinary = %q\n"+
			"user = \"\"\n%s", parts.EnvoyPath(t), keys)
}

func TestWhatAStartWouldRefuseIsTold(t *testing.T) {
	h := newHost(t)
	h.write("ok.yaml", "admin: {address: {pipe: {path: /tmp/none.sock}}}\n")
	h.write("ok.tmpl",
		`{"admin":{"address":{"pipe":{"path":"{{ .admin_socket }}"}}},"node":{"id":"{{ .nodeID }}"}}`)
	const mesh = `{"admin":{"address":{"pipe":{"path":"{{ .admin_socket }}"}}},"node":{"id":"{{ .nodeID }}","cluster":"a"},` +
		`"dynamic_resources":{"lds_config":{"ads":{}},"ads_config":{"api_type":"GRPC","grpc_services":[{"envoy_grpc":{"cluster_name":"xds-grpc"}}]}},` +
		`"static_resources":{"clusters":[%s{"name":"xds-grpc","load_assignment":{"cluster_name":"xds-grpc","endpoints":[{"lb_endpoints":[` +
		`{"endpoint":{"address":{"pipe":{"path":"/run/outrider-check/envoy/%s.sock"}}}}]}]}}]}}`
	h.write("mesh.tmpl", fmt.Sprintf(mesh, "", "xds"))
	h.write("other.tmpl", fmt.Sprintf(mesh, "", "other"))
	const cluster = `{"name":%q,"load_assignment":{"cluster_name":"s","endpoints":[{"lb_endpoints":[` +
		`{"endpoint":{"address":{"pipe":{"path":"/run/outrider-check/envoy/sds.sock"}}}}]}]}},`
	h.write("secrets.tmpl",
		fmt.Sprintf(mesh, `{"name":"sds-grpc","load_assignment":{"cluster_name":"sds-grpc"}},`, "xds"))
	h.write("own.tmpl", fmt.Sprintf(mesh, fmt.Sprintf(cluster, "mine"), "xds"))
	const identity = "[identity]\nprovider = \"files\"\ncert_file = \"/c\"\nkey_file = \"/k\"\n" +
		"root_ca_file = \"/r\"\n"
	h.write("noadmin.yaml", "node: {id: a}\n")
	h.write("broken.yaml", "admin:\n  address: [\n")
	h.write("broken.tmpl", "{\n{{ .nodeID \n}")
	h.write("unknown.tmpl", "{\n\"a\": \"{{ .nodeld }}\"\n}")
	h.write("override.yaml", "static_resources:\n  listener: []\n")
	h.write("refused.yaml",
		"static_resources:\n  listeners:\n"+
			"  - {name: bad, address: {socket_address: {address: nowhere, port_value: 1}}}\n")
	h.write("large.yaml", "")
	if err := os.Truncate(filepath.Join(h.dir, "large.yaml"), maxFile+1); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(h.dir, "pipe.yaml"), 0o644); err != nil {
		t.Fatal(err)
	}
	const before = "$DIR/outrider.toml:6:1: envoy."
	for _, c := range []struct{ name, keys, want string }{
		{"nothing", "", ""},
		{"a template", "template_file = \"ok.tmpl\"\n", ""},
		{"a template of a mesh", "template_file = \"mesh.tmpl\"\n", ""},
		{"a template with secrets", "template_file = \"secrets.tmpl\"\n" + identity, ""},
		{"a template with secrets in a cluster of its own", "template_file = \"own.tmpl\"\n" + identity, ""},
		{"a template of another mesh", "template_file = \"other.tmpl\"\n" + identity, ""},
		{"a template of a mesh beside output_dir",
			"template_file = \"mesh.tmpl\"\n" + identity + "output_dir = \"/out\"\n", ""},
		{"a template without secrets", "template_file = \"mesh.tmpl\"\n" + identity, before +
			"template_file: $DIR/mesh.tmpl has no cluster sds-grpc, from which Envoy gets the certificate " +
			"of [identity] provider; add the cluster, with HTTP/2 to the Unix socket /run/outrider-check/"},
		{"a custom file", "custom_config_file = \"ok.yaml\"\n", ""},
		{"a missing template", "template_file = \"missing.tmpl\"\n",
			before + "template_file: $DIR/missing.tmpl cannot be read: no such file or directory; create " +
				"it, or remove the key"},
		{"a template that is none", "template_file = \"broken.tmpl\"\n",
			before + "template_file: $DIR/broken.tmpl:"},
		{"an unknown name", "template_file = \"unknown.tmpl\"\n",
			before + "template_file: $DIR/unknown.tmpl:2: "},
		{"a custom file without admin", "custom_config_file = \"noadmin.yaml\"\n",
			before + "custom_config_file: the bootstrap has no admin.address"},
		{"a broken custom file", "custom_config_file = \"broken.yaml\"\n",
			before + "custom_config_file: $DIR/broken.yaml:"},
		{"an unknown field", "bootstrap_override = \"override.yaml\"\n",
			before + "bootstrap_override: $DIR/override.yaml:2: static_resources.listener: "},
		{"what only Envoy refuses", "bootstrap_override = \"refused.yaml\"\n",
			before + "bootstrap_override: Envoy does not accept the bootstrap: error initializing " +
				"configuration 'the bootstrap': malformed IP address: nowhere"},
		{"the length of names", "stat_name_length = 100\n",
			before + "stat_name_length: Envoy 1.40.0 has no --max-obj-name-len; remove the key"},
		{"an argument that Envoy does not know", "extra_args = [\"--no-such-flag\"]\n",
			before + "extra_args: Envoy 1.40.0 has no flag --no-such-flag; remove it"},
		{"an argument after a flag", "extra_args = [\"--cpuset-threads\", \"--no-such-flag\"]\n",
			before + "extra_args: --no-such-flag: Envoy has no such flag; correct it, or remove it"},
		{"a named pipe", "custom_config_file = \"pipe.yaml\"\n",
			before + "custom_config_file: $DIR/pipe.yaml cannot be read: the path is not a " +
				"regular file; name " +
				"another file, or remove the key"},
		{"a device", "bootstrap_override = \"/dev/zero\"\n",
			before + "bootstrap_override: /dev/zero cannot be read: the path is not a regular file"},
		{"a folder", "template_file = \"/\"\n",
			before + "template_file: / cannot be read: the path is not a regular file"},
		{"a large file", "custom_config_file = \"large.yaml\"\n", before +
			"custom_config_file: $DIR/large.yaml cannot be read: the file is larger than " +
			"67108864 bytes"},
		{"a token that is a device",
			"[tracing]\nprovider = \"lightstep\"\naddress = \"127.0.0.1:1\"\n" +
				"access_token_file = \"/dev/zero\"\n",
			"$DIR/outrider.toml:9:1: tracing.access_token_file: /dev/zero cannot be read: the path is not a " +
				"regular file"},
	} {
		report := h.check(withEnvoy(t, c.keys))
		if got := h.clean(report.Errors); !strings.HasPrefix(got, c.want) ||
			(got == "") != (c.want == "") || len(report.Errors) > 1 {
			t.Errorf("%s: %s\nwant %s", c.name, got, c.want)
		}
		if len(report.Warnings) > 0 {
			t.Errorf("%s: %v", c.name, report.Warnings)
		}
	}
}

func TestAllThatIsWrongIsToldAtOnce(t *testing.T) {
	h := newHost(t)
	report := h.check(
		"[envoy]\nbinary = \"/nonexistent/envoy\"\ntemplate_file = \"a.tmpl\"\n" +
			"bootstrap_override = \"b.yaml\"\n[telemetry]\n" +
			"statsd_udp_address = \"no.such.name.invalid:1\"\n")
	got := h.clean(report.Errors)
	for i, want := range []string{"outrider.toml:2:1: envoy.binary: ",
		"outrider.toml:3:1: envoy.template_file: ", "outrider.toml:4:1: envoy.bootstrap_override: ",
		"outrider.toml:6:1: telemetry.statsd_udp_address: "} {
		if !strings.Contains(strings.Split(got+"\n\n\n\n", "\n")[i], want) {
			t.Errorf("line %d of %s\nshould have %s", i+1, got, want)
		}
	}
	if !report.RequiredProgramMissing {
		t.Error("it is not told that there is no Envoy")
	}
}

func TestWhatCannotBeCheckedIsSaid(t *testing.T) {
	h := newHost(t)
	for _, c := range []struct{ name, toml, want string }{
		{"a credential", withEnvoy(t, "template_file = \"credential:bootstrap\"\n"),
			"the bootstrap was not checked: envoy.template_file is credential:bootstrap, which only the " +
				"unit has"},
		{"a folder of the mesh that is missing", strings.Replace(withEnvoy(t, ""), "[\"/\"]",
			"[\"to-come\"]", 1),
			"$DIR/outrider.toml:1:1: discovery.files: $DIR/to-come does not exist; create it, or remove it"},
		{"a certificate that is to come", withEnvoy(t, "[reload]\nfiles = [\"to-come.pem\"]\n"),
			"Envoy itself did not check the bootstrap: $DIR/to-come.pem cannot be read"},
	} {
		report := h.check(c.toml)
		if got := h.clean(report.Warnings); len(report.Errors) > 0 ||
			!strings.Contains(got, c.want) {
			t.Errorf("%s: %v %s", c.name, report.Errors, got)
		}
	}
}

// late is an envoy.Runner whose every run exceeds its deadline.
type late struct{}

func (late) Run(context.Context, string, []string) (stdout, stderr []byte, exit int, err error) {
	return nil, nil, 0, context.DeadlineExceeded
}

func TestAnEnvoyThatDoesNotEndIsNoRefusal(t *testing.T) {
	h := newHost(t)
	loaded, err := config.Load(config.Options{Path: h.write("outrider.toml", ""), CheckOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := thisHost().Build(t.Context(), loaded)
	if err != nil {
		t.Fatal(err)
	}
	report := CheckReport{}
	(&environment{runner: late{}, folder: h.dir}).validate(t.Context(), plan, &envoy.Binary{}, &report)
	if got := h.clean(report.Warnings); !strings.Contains(got,
		"Envoy itself did not check the bootstrap: context deadline exceeded") ||
		len(report.Errors) > 0 {
		t.Errorf("%s %v", got, report.Errors)
	}
	if left, _ := filepath.Glob(filepath.Join(h.dir, ".envoy-check-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestCheck_NeedsAnEnvoy(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, path := range []string{"/usr/local/bin/envoy", "/usr/bin/envoy"} {
		if _, err := os.Stat(path); err == nil {
			t.Fatalf("%s is in the way of this test", path)
		}
	}
	report := newHost(t).check("")
	if got := report.Errors.Error(); !report.RequiredProgramMissing || len(report.Errors) != 1 ||
		!strings.Contains(got, "envoy.binary: no executable Envoy found") {
		t.Errorf("%t %s", report.RequiredProgramMissing, got)
	}
}

// A check by root reports a file that the agent's user cannot read, as a start of the unit does.
// The error has the position of the key that names the file.
func TestCheck_RefusesWhatTheUnitsUsersCannotRead(t *testing.T) {
	h := newHost(t)
	if err := os.Chmod(h.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	private := h.write("override.yaml", "{}\n")
	if err := os.Chmod(private, 0o600); err != nil {
		t.Fatal(err)
	}
	certificate := h.write("ca.pem", "")
	if err := os.Chmod(certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	main := h.write("outrider.toml",
		withEnvoy(t, "bootstrap_override = \"override.yaml\"\n[reload]\nfiles = [\"ca.pem\"]\n"))
	stranger := newReader("outrider", "outrider", 64321)
	report := Check(t.Context(), config.Options{Path: main, Environment: func(string) string {
		return ""
	}}, CheckOptions{Builder: thisHost(), AgentUser: stranger})
	want := "$DIR/outrider.toml:6:1: envoy.bootstrap_override: user outrider cannot read " +
		"$DIR/override.yaml: chgrp outrider $DIR/override.yaml; chmod 640 $DIR/override.yaml\n" +
		"$DIR/outrider.toml:8:1: reload.files: user outrider cannot read $DIR/ca.pem: chown outrider " +
		"$DIR/ca.pem; chmod 400 $DIR/ca.pem"
	if got := h.clean(report.Errors); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	stranger.check = nil // as if a user other than root ran the check
	report = Check(t.Context(), config.Options{Path: main, Environment: func(string) string {
		return ""
	}}, CheckOptions{Builder: thisHost(), AgentUser: stranger})
	if got := report.Warnings.Error(); len(report.Errors) > 0 ||
		!strings.Contains(got, "was not checked; run the check as root") {
		t.Errorf("%s; warnings %s", h.clean(report.Errors), got)
	}
	stranger = newReader("outrider", "outrider", 64321)
	report = Check(t.Context(), config.Options{Path: main, Environment: func(string) string {
		return ""
	}}, CheckOptions{Builder: thisHost(), EnvoyUser: stranger})
	_, want, _ = strings.Cut(want, "\n")
	if got := h.clean(report.Errors); got != want {
		t.Errorf("Envoy: %s\nwant %s", got, want)
	}
	if err := os.Chmod(main, 0o600); err != nil {
		t.Fatal(err)
	}
	report = Check(t.Context(), config.Options{Path: main, Environment: func(string) string {
		return ""
	}}, CheckOptions{Builder: thisHost(), AgentUser: stranger})
	if got := h.clean(report.Errors); !strings.HasPrefix(got,
		"$DIR/outrider.toml: user outrider cannot read $DIR/outrider.toml: chgrp outrider "+
			"$DIR/outrider.toml; chmod 640") {
		t.Errorf("the main file: %s", got)
	}
}
