package config

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestFoldersOfSystemd(t *testing.T) {
	folder := write(t, map[string]string{"web.toml": "",
		"set.toml": `paths = { runtime_dir = "/a", state_dir = "b" }`})
	variables := environment(map[string]string{
		"RUNTIME_DIRECTORY": "/run/outrider/web:/run/outrider/web/envoy",
		"STATE_DIRECTORY":   "/srv/state/"})
	loaded := load(t, Options{ConfigDirectory: folder, Instance: "web", Environment: variables})
	if loaded.Config.Paths != (Paths{"/run/outrider/web", "/srv/state"}) {
		t.Errorf("%+v", loaded.Config.Paths)
	}
	if loaded.Config.XDS.Socket != "/run/outrider/web/envoy/xds.sock" {
		t.Error(loaded.Config.XDS.Socket)
	}
	if got := loaded.TOMLWithSources(); !strings.Contains(got, "# $RUNTIME_DIRECTORY\n") {
		t.Errorf("show:\n%s", got)
	}
	loaded = load(t, Options{Path: folder + "/set.toml", Environment: variables})
	if loaded.Config.Paths != (Paths{"/a", folder + "/b"}) {
		t.Errorf("%+v", loaded.Config.Paths)
	}
}

func TestPathsAreFinal(t *testing.T) {
	folder := write(t, map[string]string{
		"outrider.toml": `
envoy.binary = "envoy"
envoy.custom_config_file = "./envoy.yaml"
reload.files = ["../a", "/b"]
discovery.files = ["mesh", "/etc/mesh"]
telemetry.access_log_file = "/dev/stdout"
`,
		"conf.d/a.toml": "envoy.bootstrap_override = \"override.yaml\"",
	})
	c := load(t, Options{ConfigDirectory: folder}).Config
	if c.Envoy.Binary != "envoy" || c.Envoy.CustomConfigFile != folder+"/envoy.yaml" ||
		c.Envoy.BootstrapOverride != folder+"/conf.d/override.yaml" ||
		c.Telemetry.AccessLogFile != "/dev/stdout" {
		t.Errorf("%+v", c.Envoy)
	}
	if diff := cmp.Diff([]string{filepath.Dir(folder) + "/a", "/b"}, c.Reload.Files); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{folder + "/mesh", "/etc/mesh"}, c.Discovery.Files); diff != "" {
		t.Error(diff)
	}
}

// TestSocketPathsFit: the error about a too long socket path contains the position of the key or,
// if no file sets the key, the main file.
func TestSocketPathsFit(t *testing.T) {
	long := "/" + strings.Repeat("x", 100)
	folder := write(t,
		map[string]string{"outrider.toml": "", "set.toml": "paths.runtime_dir = \"" + long + "\""})
	for name, where := range map[string]string{"outrider.toml": "", "set.toml": ":1:1"} {
		_, err := Load(Options{Path: filepath.Join(folder, name),
			Environment: environment(map[string]string{"RUNTIME_DIRECTORY": long})})
		if err == nil || !strings.Contains(err.Error(), name+where+": ") ||
			!strings.Contains(err.Error(), "may have 107") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNamedPipeIsNotAwaited(t *testing.T) {
	folder := write(t, map[string]string{"outrider.toml": "", "conf.d/10-a.toml": ""})
	pipe := filepath.Join(folder, "conf.d", "20-pipe.toml")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(Options{ConfigDirectory: folder, Environment: environment(nil)})
	if err == nil || !strings.Contains(err.Error(), pipe) ||
		!strings.Contains(err.Error(), "named pipe") {
		t.Errorf("a named pipe among the drop-ins: %v", err)
	}
}
