package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/scripts/parts"
)

// write creates files in a new directory and returns it.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	for name, text := range files {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// environment returns a function that looks up variables in a map.
func environment(variables map[string]string) func(string) string {
	return func(name string) string { return variables[name] }
}

func load(t *testing.T, options Options) *Loaded {
	t.Helper()
	if options.Environment == nil {
		options.Environment = environment(nil)
	}
	loaded, err := Load(options)
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

func TestEmptyFileIsValid(t *testing.T) {
	folder := write(t, map[string]string{"outrider.toml": ""})
	loaded := load(t, Options{ConfigDirectory: folder})
	c := loaded.Config
	if c.Paths != (Paths{"/run/outrider", "/var/lib/outrider"}) {
		t.Errorf("paths %+v", c.Paths)
	}
	if c.Envoy.ConfigDir != "/run/outrider/envoy" ||
		c.XDS.Socket != "/run/outrider/envoy/xds.sock" ||
		c.SDS.Socket != "/run/outrider/envoy/sds.sock" {
		t.Errorf("config_dir %s, sockets %s and %s", c.Envoy.ConfigDir, c.XDS.Socket, c.SDS.Socket)
	}
	if diff := cmp.Diff([]string{filepath.Join(folder, "outrider.toml")},
		loaded.Files); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{filepath.Join(folder, "conf.d")}, loaded.Dirs); diff != "" {
		t.Error(diff)
	}
	if len(loaded.Positions) > 0 {
		t.Errorf("sources %v", loaded.Positions)
	}
}

func TestMissingFileIsAnError(t *testing.T) {
	folder := write(t, map[string]string{"conf.d/10.toml": "envoy.concurency = 1"})
	_, err := Load(Options{ConfigDirectory: folder, Environment: environment(nil)})
	want := folder + "/outrider.toml: there is no such file; create it (an empty file is a valid " +
		"configuration) or name another with --config FILE\n" +
		folder + "/conf.d/10.toml:1:1: envoy.concurency: there is no such key; did you mean " +
		"envoy.concurrency?"
	var list Errors
	if !errors.As(err, &list) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	var one *Error
	if !errors.As(err, &one) || one.File != folder+"/outrider.toml" {
		t.Errorf("got %v", one)
	}
}

func TestUnreadableFilesAreErrors(t *testing.T) {
	folder := write(t, map[string]string{
		"outrider.toml/inside": "",
		"conf.d/20-big.toml":   strings.Repeat("#\n", maxSize/2+1),
	})
	if err := os.Symlink("nowhere", filepath.Join(folder, "conf.d/10-link.toml")); err != nil {
		t.Fatal(err)
	}
	_, err := Load(Options{ConfigDirectory: folder, Environment: environment(nil)})
	want := folder + "/outrider.toml: cannot be read: is a directory\n" +
		folder + "/conf.d/10-link.toml: cannot be read: no such file or directory; it was removed just " +
		"now, or is a dangling symbolic link\n" +
		folder + "/conf.d/20-big.toml: cannot be read: the file is larger than 1048576 bytes"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// TestDropInsMerge: drop-ins are merged in the order of their names. Tables, also nested ones, are
// merged key by key; a list replaces the earlier list.
func TestDropInsMerge(t *testing.T) {
	folder := write(t, map[string]string{
		"outrider.toml": `
[node]
labels = { app = "web", version = "1" }
extra_ips = ["10.0.0.1", "10.0.0.2"]
[node.metadata]
A = { x = 1, y = [1, 2] }
B = "b"
[status.probe.app]
http = "http://127.0.0.1:80/"
timeout = "2s"
[telemetry.metrics_service_tls]
mode = "simple"
ca_file = "/ca.pem"
[telemetry]
metrics_service = "a:1"
`,
		"conf.d/20-b.toml": `
node.labels.version = "3"
[status.probe.app]
timeout = "3s"
headers.Host = "a"
`,
		"conf.d/10-a.toml": `
[node]
extra_ips = ["10.0.0.3"]
labels.version = "2"
labels."a/b" = "c"
metadata.A.y = []
metadata.B = { c = 2 }
[telemetry.metrics_service_tls]
server_name = "metrics"
`,
		"conf.d/30.toml.bak":     "broken",
		"conf.d/.hidden.toml":    "broken",
		"conf.d/40.toml/50.toml": "broken",
	})
	loaded := load(t, Options{Path: filepath.Join(folder, "outrider.toml")})
	c := loaded.Config
	if diff := cmp.Diff(map[string]string{"app": "web", "version": "3", "a/b": "c"},
		c.Node.Labels); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"10.0.0.3"}, c.Node.ExtraIPs); diff != "" {
		t.Error(diff)
	}
	want := map[string]any{"A": map[string]any{"x": int64(1), "y": []any(nil)},
		"B": map[string]any{"c": int64(2)}}
	if diff := cmp.Diff(want, c.Node.Metadata); diff != "" {
		t.Error(diff)
	}
	probe := Probe{HTTP: "http://127.0.0.1:80/", Timeout: 3e9,
		Headers: map[string]string{"Host": "a"}}
	if diff := cmp.Diff(map[string]Probe{"app": probe}, c.Status.Probes); diff != "" {
		t.Error(diff)
	}
	tls := TLSSettings{Mode: "simple", CAFile: "/ca.pem", ServerName: "metrics"}
	if diff := cmp.Diff(tls, c.Telemetry.MetricsServiceTLS); diff != "" {
		t.Error(diff)
	}
	sources := map[string]string{}
	for key, position := range loaded.Positions {
		sources[key] = strings.TrimPrefix(position.String(), folder+"/")
	}
	if diff := cmp.Diff(map[string]string{
		"node.labels.app":                           "outrider.toml:3:12",
		"node.labels.version":                       "conf.d/20-b.toml:2:1",
		`node.labels."a/b"`:                         "conf.d/10-a.toml:5:1",
		"node.extra_ips":                            "conf.d/10-a.toml:3:1",
		"node.metadata.A.x":                         "outrider.toml:6:7",
		"node.metadata.A.y":                         "conf.d/10-a.toml:6:1",
		"node.metadata.B.c":                         "conf.d/10-a.toml:7:16",
		"status.probe.app":                          "outrider.toml:8:1",
		"status.probe.app.http":                     "outrider.toml:9:1",
		"status.probe.app.timeout":                  "conf.d/20-b.toml:4:1",
		"status.probe.app.headers.Host":             "conf.d/20-b.toml:5:1",
		"telemetry.metrics_service_tls.mode":        "outrider.toml:12:1",
		"telemetry.metrics_service_tls.ca_file":     "outrider.toml:13:1",
		"telemetry.metrics_service":                 "outrider.toml:15:1",
		"telemetry.metrics_service_tls.server_name": "conf.d/10-a.toml:9:1",
	}, sources); diff != "" {
		t.Error(diff)
	}
	parts.Golden(t, "testdata/show.golden",
		strings.ReplaceAll(loaded.TOMLWithSources(), folder, "/etc/outrider"), *update)
	files := []string{"outrider.toml", "conf.d/10-a.toml", "conf.d/20-b.toml"}
	for i := range files {
		files[i] = filepath.Join(folder, files[i])
	}
	if diff := cmp.Diff(files, loaded.Files); diff != "" {
		t.Error(diff)
	}
}

func TestInstance(t *testing.T) {
	folder := write(t, map[string]string{
		"web.toml": "", "web.conf.d/10.toml": "node.namespace = \"web\"",
		"conf.d/10.toml": "node.namespace = \"x\"",
		"other.toml":     "discovery.files = [\"mesh\"]\npaths.runtime_dir = \"/srv/run\"",
	})
	loaded := load(t, Options{ConfigDirectory: folder, Instance: "web"})
	c := loaded.Config
	if c.Paths != (Paths{"/run/outrider/web", "/var/lib/outrider/web"}) ||
		c.Node.Namespace != "web" {
		t.Errorf("%+v, namespace %s", c.Paths, c.Node.Namespace)
	}
	if diff := cmp.Diff([]string{folder + "/web.mesh.d"}, c.Discovery.Files); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(loaded.TOMLWithSources(), "# default, from the instance\n") {
		t.Errorf("show does not tell where discovery.files comes from:\n%s",
			loaded.TOMLWithSources())
	}
	if diff := cmp.Diff([]string{folder + "/web.conf.d"}, loaded.Dirs); diff != "" {
		t.Error(diff)
	}

	c = load(t, Options{ConfigDirectory: folder, Instance: "other"}).Config
	if c.Paths != (Paths{"/srv/run", "/var/lib/outrider/other"}) {
		t.Errorf("%+v", c.Paths)
	}
	if diff := cmp.Diff([]string{folder + "/mesh"}, c.Discovery.Files); diff != "" {
		t.Error(diff)
	}

	// A file selected by path, even with an instance name, uses the default directories.
	c = load(t, Options{Path: folder + "/other.toml", Instance: "web"}).Config
	if c.Paths != (Paths{"/srv/run", "/var/lib/outrider"}) {
		t.Errorf("%+v", c.Paths)
	}
}

func TestInstanceNames(t *testing.T) {
	for name, want := range map[string]string{
		"web-1_A":    "",
		"envoy":      `--instance: "envoy" is reserved; choose another name`,
		"outrider":   `--instance: "outrider" is reserved; choose another name`,
		"discoveryd": `--instance: "discoveryd" is reserved; choose another name`,
		"../web": `--instance: "../web" is not a valid instance name; allowed are up to 32 letters, ` +
			`digits, - and _, the first one a letter or digit`,
		"a b": `--instance: "a b" is not a valid instance name; allowed are up to 32 letters, digits, ` +
			`- and _, the first one a letter or digit`,
	} {
		got := ""
		if err := CheckInstanceName(name); err != nil {
			got = err.Error()
			if _, loadErr := Load(Options{Instance: name}); loadErr == nil ||
				loadErr.Error() != got {
				t.Errorf("%q: Load says %v, CheckInstance %v", name, loadErr, err)
			}
		}
		if got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}

func TestCredentials(t *testing.T) {
	folder := write(t, map[string]string{
		"outrider.toml": "tracing = { provider = \"lightstep\", address = \"a:1\", access_token_file = \"credential:token\" }",
		"wrong.toml":    "tracing.ca_file = \"credential:../shadow\"\ntracing.access_token_file = \"credential:\"",
	})
	main := filepath.Join(folder, "outrider.toml")
	inUnit := environment(
		map[string]string{"CREDENTIALS_DIRECTORY": "/run/credentials/outrider.service"})
	c := load(t, Options{Path: main, Environment: inUnit}).Config
	if c.Tracing.AccessTokenFile != "/run/credentials/outrider.service/token" {
		t.Error(c.Tracing.AccessTokenFile)
	}
	if c = load(t, Options{Path: main,
		CheckOnly: true}).Config; c.Tracing.AccessTokenFile != "credential:token" {
		t.Error(c.Tracing.AccessTokenFile)
	}
	for name, want := range map[string]string{
		"outrider.toml": `F:1:54: tracing.access_token_file: "credential:token" cannot be read: ` +
			`$CREDENTIALS_DIRECTORY is not set; name a file, or run under systemd with ` +
			`LoadCredential=token:FILE in the unit`,
		"wrong.toml": `F:1:1: tracing.ca_file: "credential:../shadow" does not name a credential; ` +
			`write credential:NAME with the NAME of LoadCredential= in the unit` + "\n" +
			`F:2:1: tracing.access_token_file: "credential:" does not name a credential; write ` +
			`credential:NAME with the NAME of LoadCredential= in the unit`,
	} {
		path := filepath.Join(folder, name)
		_, err := Load(Options{Path: path, Environment: environment(nil)})
		if err == nil || strings.ReplaceAll(err.Error(), path, "F") != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestUserIsTheUnitsToDecide(t *testing.T) {
	folder := write(t, map[string]string{"outrider.toml": `envoy.user = "nobody"`})
	main := filepath.Join(folder, "outrider.toml")
	if c := load(t, Options{Path: main}).Config; c.Envoy.User != "nobody" {
		t.Error(c.Envoy.User)
	}
	_, err := Load(Options{Path: main, RunsInUnit: true, Environment: environment(nil)})
	want := main + `:1:1: envoy.user: "nobody" is not the user of outrider-envoy.service, which ` +
		`decides under systemd; remove the key, or set User= in a drop-in of outrider-envoy.service`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// For an unreadable file the error contains the command that grants access.
func TestFileError_HasTheCommandThatLetsTheAgentRead(t *testing.T) {
	refused := &fs.PathError{Op: "open", Path: "/x.toml", Err: fs.ErrPermission}
	for want, unreadable := range map[string]func(string) string{
		"let the agent's user read it": nil,
		"chgrp agents /x.toml; chmod 640 /x.toml": func(path string) string {
			return "user agent cannot read " + path + ": chgrp agents /x.toml; chmod 640 /x.toml"
		},
	} {
		got := fileError(layout{}, "/x.toml", refused, unreadable).Error()
		if want := "/x.toml: cannot be read: permission denied; " + want; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
