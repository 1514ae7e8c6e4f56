package main_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/rig"
)

// TestXDSSocket_MovesOnReload changes [xds] socket by reloads. A refused reload changes nothing.
// After an accepted reload, the socket of the previous epoch works until the next reload.
func TestXDSSocket_MovesOnReload(t *testing.T) {
	t.Parallel()
	const toml, watch = "[envoy]\ndrain_duration = \"2s\"\nparent_shutdown_duration = \"4s\"\n",
		"[reload]\nwatch = false\n"
	r := rig.New(t, rig.Options{Race: true, TOML: toml + watch})
	r.StartReady()
	folder := filepath.Join(r.Dir, "run", "envoy")
	path := func(name string) string { return filepath.Join(folder, name) }
	at := func(socket, envoy string) string {
		return toml + envoy + watch + fmt.Sprintf("[xds]\nsocket = %q\n", socket)
	}
	there := func(name string) bool {
		info, err := os.Lstat(path(name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return err == nil && info.Mode() == 0o660|fs.ModeSocket
	}
	follows := follower(t, r, ", namespace: default", "")

	stop := asking(r)
	before := current(t, r)
	taken, err := net.Listen("unix", path("taken.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	position := filepath.Join(r.Dir, "conf.d", "50-test.toml") + ":7:"
	for _, refused := range []struct{ name, toml, says, fix string }{
		{"no folder", at(filepath.Join(r.Dir, "none", "xds.sock"), ""), position,
			"make the folder " + filepath.Join(r.Dir, "none")},
		{"somebody else's", at(path("taken.sock"), ""), position, "stop that process"},
		// A path of 105 bytes fits into a socket address, but the agent binds a longer temporary
		// name first.
		{"too long", at(path(strings.Repeat("x", 104-len(folder))), ""), position, "shorten it"},
		{"a bad bootstrap", at(path("xds2.sock"), fmt.Sprintf("bootstrap_override = %q\n",
			badBootstrap(r))), "malformed IP address", ""},
	} {
		r.SetTOML(refused.toml)
		told := r.RunOutrider("reload")
		if told.ExitCode != api.ExitRefused || !strings.Contains(told.Stderr, refused.says) ||
			!strings.Contains(told.Stderr, refused.fix) ||
			refused.fix != "" && !strings.Contains(told.Stderr, "xds.socket: ") {
			t.Errorf("%s: exit %d: %s%s", refused.name, told.ExitCode, told.Stdout, told.Stderr)
		}
		if now := current(t, r); now.PID != before.PID || !there("xds.sock") {
			t.Errorf("%s: epoch %+v", refused.name, now)
		}
	}
	follows("after what was refused")

	r.SetTOML(at(path("xds2.sock"), ""))
	if told := r.RunOutrider("reload"); told.ExitCode != 0 || !strings.Contains(told.Stdout, "0 → 1") {
		t.Fatalf("reload: exit %d: %s%s", told.ExitCode, told.Stdout, told.Stderr)
	}
	if !there("xds.sock") || !there("xds2.sock") {
		t.Errorf("while both epochs live: xds.sock %v, xds2.sock %v", there("xds.sock"),
			there("xds2.sock"))
	}
	follows("at its new socket")
	// Change the socket back, and kill the agent while both epochs run. The draining epoch
	// continues to serve without an xDS stream.
	r.SetTOML(at(path("xds.sock"), ""))
	if told := r.RunOutrider("reload"); told.ExitCode != 0 {
		t.Fatalf("reload: exit %d: %s%s", told.ExitCode, told.Stdout, told.Stderr)
	}
	r.KillAgent()
	r.StartReady()
	follows("of the next agent")
	r.SetTOML(at(path("xds2.sock"), "")) // the killed agent has left a socket at this path
	if told := r.RunOutrider("reload"); told.ExitCode != 0 {
		t.Fatalf("reload: exit %d: %s%s", told.ExitCode, told.Stdout, told.Stderr)
	}
	follows("at a socket that was left behind")
	if told := r.RunOutrider("reload"); told.ExitCode != 0 || there("xds.sock") ||
		!there("xds2.sock") {
		t.Errorf("the next reload closes the old socket: exit %d: %s%s", told.ExitCode, told.Stdout,
			told.Stderr)
	}
	follows("once the old socket is gone")
	if lost := stop(); len(lost) > 0 {
		t.Errorf("%d requests were lost: %q", len(lost), lost)
	}
}
