package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/rig"
)

// TestDiskFull_IsSaidUntilThereIsSpace fills the file systems of the state directory and of the
// access log. Until there is space again, the status reports both, and which data cannot be
// written.
func TestDiskFull_IsSaidUntilThereIsSpace(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	fills := map[string]string{}
	for _, name := range []string{"state", "logs"} {
		folder := filepath.Join(r.Dir, name)
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", folder, "tmpfs", 0, "size=1m"); err != nil {
			t.Fatal("this test must run as root: ", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(folder, unix.MNT_DETACH) })
		fills[folder] = filepath.Join(folder, "fill")
	}
	log := filepath.Join(r.Dir, "logs", "access.log")
	settings := fmt.Sprintf("[telemetry]\naccess_log_file = %q\n[log]\nlevel = ", log)
	r.SetTOML(settings + `"info"`)
	r.StartReady()
	for _, fill := range fills {
		if err := os.WriteFile(fill, make([]byte, 2<<20), 0o600); err == nil {
			t.Fatal("the file system is not full")
		}
	}
	// The agent checks the file systems every minute, and also when a changed key takes effect
	// without a new epoch, such as log.level.
	levels, turn := []string{`"debug"`, `"info"`}, 0
	looks := func(what string, done func(status string) bool) {
		t.Helper()
		rig.Eventually(t, time.Minute, what, func() bool {
			_, _, _ = r.GetThroughEnvoy("/hello")
			r.SetTOML(settings + levels[turn%2])
			turn++
			_ = r.RunOutrider("reload", "--if-changed")
			return done(r.RunOutrider("status").Stdout)
		})
	}
	looks("status names both and what is lost", func(status string) bool {
		for _, want := range []string{
			"disk-full", "the file system of " + filepath.Join(r.Dir, "state") + " is full (",
			"the last accepted configuration and the caches of the next start cannot be written",
			"lines of " + log + " are lost", "log-lines-lost",
		} {
			if !strings.Contains(status, want) {
				return false
			}
		}
		return true
	})
	if ready, why := r.Ready(); !ready {
		t.Errorf("full disks make the proxy unready: %s", why)
	}
	for _, fill := range fills {
		if err := os.Remove(fill); err != nil {
			t.Fatal(err)
		}
	}
	looks("both end by themselves", func(status string) bool {
		return !strings.Contains(status, "disk-full") && !strings.Contains(status, "log-lines-lost")
	})
}
