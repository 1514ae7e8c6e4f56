package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

// of loads a configuration that consists of one file.
func of(t *testing.T, text string) *Loaded {
	t.Helper()
	loaded, errs := buildAt([]txtar.File{{Name: "outrider.toml", Data: []byte(text)}}, Options{})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return loaded
}

func TestCompare(t *testing.T) {
	for _, test := range []struct {
		name, old, new string
		want           []Change
	}{
		{"nothing", `envoy.concurrency = 2`, "[envoy]\nconcurrency = 2 # two", nil},
		{"a default that is written down", ``, `envoy.live_timeout = "1m"`, nil},
		{"each effect", ``, `
envoy.log_level = "debug"
envoy.concurrency = 2
reload.watch = false`, []Change{
			{"envoy.concurrency", "0", "2", Epoch},
			{"envoy.log_level", `"warning"`, `"debug"`, Live},
			{"reload.watch", "true", "false", Start},
		}},
		{"entries of tables", `
node.labels = { a = "1", b = "2" }
node.metadata = { m = { x = 1, y = 2 } }`, `
node.labels = { b = "3", c = "4" }
node.metadata = { m = { x = 1 }, n = [1, "a"] }`, []Change{
			{"node.labels.b", `"2"`, `"3"`, Epoch},
			{"node.labels.c", ``, `"4"`, Epoch},
			{"node.metadata.n", ``, `"[redacted]"`, Epoch},
			{"node.labels.a", `"1"`, ``, Epoch},
			{"node.metadata.m.y", `"[redacted]"`, ``, Epoch},
		}},
		{"probes", `
[status.probe."a/b"]
http = "http://127.0.0.1/"
[status.probe.gone]
tcp = "127.0.0.1:80"`, `
[status.probe."a/b"]
http = "http://127.0.0.1/"
headers.X = "1"
[status.probe.new]
tcp = "127.0.0.1:80"`, []Change{
			{`status.probe."a/b".headers.X`, ``, `"[redacted]"`, Live},
			{`status.probe.new.tcp`, ``, `"127.0.0.1:80"`, Live},
			{`status.probe.gone.tcp`, `"127.0.0.1:80"`, ``, Live},
		}},
		{"what follows is not told beside its cause", ``,
			`paths.runtime_dir = "/srv/run"`, []Change{
				{"paths.runtime_dir", `"/run/outrider"`, `"/srv/run"`, Start},
			}},
		{"unless it was said", `xds.socket = "/run/outrider/envoy/x.sock"`, ``, []Change{
			{"xds.socket", `"/run/outrider/envoy/x.sock"`, `"/run/outrider/envoy/xds.sock"`, Epoch},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			before, after := of(t, test.old), of(t, test.new)
			if diff := cmp.Diff(test.want, Compare(before.Config, after.Config)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if back := Compare(after.Config, before.Config); len(back) != len(test.want) {
				t.Errorf("back: %v", back)
			}
			if (before.Hash == after.Hash) != (len(test.want) == 0) {
				t.Errorf("hashes %s and %s with %d changes", before.Hash, after.Hash,
					len(test.want))
			}
		})
	}
}

// RetainRestartKeys returns the running values of keys that need a restart.
func TestKeep(t *testing.T) {
	running := of(t, `paths.runtime_dir = "/a"
reload.watch = false`)
	next := of(t, `paths.runtime_dir = "/b"
envoy.concurrency = 3
status.probe.app.tcp = "127.0.0.1:1"
discovery.files = ["/other"]
xds.socket = "/s"`)
	retained := RetainRestartKeys(running.Config, next.Config)
	want := of(t, `paths.runtime_dir = "/a"
reload.watch = false
envoy.concurrency = 3
status.probe.app.tcp = "127.0.0.1:1"
xds.socket = "/s"`)
	if diff := cmp.Diff(want.Config, retained); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	var pending []string
	for _, change := range Compare(retained, next.Config) {
		if change.Effect != Start {
			t.Errorf("%v", change)
		}
		pending = append(pending, change.Key)
	}
	if diff := cmp.Diff([]string{"paths.runtime_dir", "reload.watch", "discovery.files"},
		pending); diff != "" {
		t.Error(diff)
	}
}

// Load accepts the output of TOMLWithSources and returns the same configuration.
func TestShowLoadsAgain(t *testing.T) {
	loaded := of(t, `
[node]
metadata = { d = 1979-05-27T07:32:00Z, l = 07:32:00, nested = [{ a = 1.0, "b c" = [true] }], e = {}, "q\"\u0001" = "\t\\" }
labels = { "" = "empty" }
[envoy]
extra_args = ["--stats-tag", "a:\"b\""]
maximum_drain_duration = "90m"
[status.probe."x/y".headers]
"a.b" = "c"
[status.probe."x/y"]
http = "http://127.0.0.1/"
[capture]
inbound_ports = []
[tracing]
sampling = 0.5
`)
	again := of(t, loaded.TOMLWithSources())
	if diff := cmp.Diff(loaded.Config, again.Config); diff != "" {
		t.Errorf("-loaded +again:\n%s\n%s", diff, loaded.TOMLWithSources())
	}
	if loaded.Hash != again.Hash {
		t.Error("hashes differ")
	}
}
