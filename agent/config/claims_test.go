package config

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestClaims(t *testing.T) {
	claims := of(t, "paths.state_dir = \"/srv/state/\"\nenvoy.base_id = 7\ntelemetry.prometheus_address = \"127.0.0.1:16090\"\n").Config.Claims()
	for _, want := range []Claim{
		{Key: "envoy.admin_port", Host: "127.0.0.1", Port: 15000},
		{Key: "status.address", Port: 15020},
		{Key: "status.ready_port", Port: 15021, Envoy: true},
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

// Envoy listens on the port for readiness only where there is a status address to ask.
func TestAReadyPortWithoutAStatusAddressIsNotClaimed(t *testing.T) {
	for _, claim := range of(t, "status.address = \"\"\n").Config.Claims() {
		if claim.Key == "status.ready_port" {
			t.Errorf("claimed is %+v", claim)
		}
	}
}

func TestClaimsClash(t *testing.T) {
	for _, c := range []struct {
		one, two Claim
		want     bool
	}{
		{Claim{Port: 80}, Claim{Host: "127.0.0.1", Port: 80}, true},
		{Claim{Host: "127.0.0.2", Port: 80}, Claim{Host: "127.0.0.1", Port: 80}, false},
		{Claim{Host: "0.0.0.0", Port: 80}, Claim{Host: "::1", Port: 80}, false},
		{Claim{Port: 80}, Claim{Port: 81}, false},
		{Claim{Name: "/a"}, Claim{Name: "/a"}, true},
		{Claim{Name: "/a"}, Claim{Name: "/b"}, false},
		{Claim{Name: "/a"}, Claim{Port: 80}, false},
	} {
		if got := c.one.Clashes(c.two); got != c.want || got != c.two.Clashes(c.one) {
			t.Errorf("%+v and %+v: %v, want %v", c.one, c.two, got, c.want)
		}
	}
}

func TestInstances(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"outrider.toml", "web-1.toml", "a.toml", "discoveryd.toml", "a.conf.d/10.toml", ".hidden.toml", "notes.txt", "folder.toml/x"} {
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
