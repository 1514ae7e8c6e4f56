package config

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestClaims(t *testing.T) {
	claims := of(t,
		"paths.state_dir = \"/srv/state/\"\nenvoy.base_id = 7\n"+
			"telemetry.prometheus_address = \"127.0.0.1:16090\"\n").Config.Claims()
	for _, want := range []HostClaim{
		{Key: "envoy.admin_port", Host: "127.0.0.1", Port: 15000},
		{Key: "status.address", Host: "127.0.0.1", Port: 15020},
		{Key: "status.ready_port", Host: "127.0.0.1", Port: 15021, Envoy: true},
		{Key: "telemetry.prometheus_address", Host: "127.0.0.1", Port: 16090, Envoy: true},
		{Key: "paths.state_dir", Name: "/srv/state"},
		{Key: "xds.socket", Name: "/run/outrider/envoy/xds.sock"},
		{Key: "envoy.base_id", Name: "base id 7"},
	} {
		if !slices.Contains(claims, want) {
			t.Errorf("no %+v in %+v", want, claims)
		}
	}
}

func TestReadyAddress(t *testing.T) {
	for _, c := range []struct{ status, want string }{
		{`address = "127.0.0.1:15020"`, "127.0.0.1:15021"},
		{`address = ":15020"`, ":15021"},
		{`address = "[fd00::5]:15020"`, "[fd00::5]:15021"},
		{`address = "localhost:15020"`, "127.0.0.1:15021"},
		{`address = ""`, "127.0.0.1:15021"},
		{`ready_port = 0`, ""},
	} {
		if got := of(t, "[status]\n"+c.status+"\n").Config.Status.ReadyAddress(); got != c.want {
			t.Errorf("%s: %q, want %q", c.status, got, c.want)
		}
	}
}

func TestClaimsClash(t *testing.T) {
	for _, c := range []struct {
		one, two HostClaim
		want     bool
	}{
		{HostClaim{Port: 80}, HostClaim{Host: "127.0.0.1", Port: 80}, true},
		{HostClaim{Host: "127.0.0.2", Port: 80}, HostClaim{Host: "127.0.0.1", Port: 80}, false},
		{HostClaim{Host: "0.0.0.0", Port: 80}, HostClaim{Host: "::1", Port: 80}, false},
		{HostClaim{Port: 80}, HostClaim{Port: 81}, false},
		{HostClaim{Name: "/a"}, HostClaim{Name: "/a"}, true},
		{HostClaim{Name: "/a"}, HostClaim{Name: "/b"}, false},
		{HostClaim{Name: "/a"}, HostClaim{Port: 80}, false},
	} {
		if got := c.one.ConflictsWith(c.two); got != c.want || got != c.two.ConflictsWith(c.one) {
			t.Errorf("%+v and %+v: %v, want %v", c.one, c.two, got, c.want)
		}
	}
}

func TestInstances(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"outrider.toml", "web-1.toml", "a.toml", "discoveryd.toml",
		"a.conf.d/10.toml", ".hidden.toml", "notes.txt", "folder.toml/x"} {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	names, err := Instances(folder)
	if diff := cmp.Diff([]string{"", "a", "web-1"}, names); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if names, err := Instances(filepath.Join(folder, "none")); err == nil {
		t.Errorf("a folder that is not there has %q", names)
	}
}
