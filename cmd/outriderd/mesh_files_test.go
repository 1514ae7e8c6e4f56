package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/rig"
)

func TestMesh_BrokenFileLeavesOthersServing(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	r.StartReady()
	r.WriteFile("mesh.d/broken.yaml",
		"apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: "+
			"bad}\nspec:\n  hosts: [web.test]\n  http:\n  - rout: []\n")
	rig.Eventually(t, time.Minute, "the problem is reported with file, line and field",
		func() bool {
			for _, condition := range conditions(t, r) {
				if strings.Contains(condition, "broken.yaml:7") && strings.Contains(condition, "rout") {
					return true
				}
			}
			return false
		})
	if code, _, err := r.GetThroughEnvoy("/hello"); err != nil || code != 200 {
		t.Errorf("GET: %d %v", code, err)
	}
	if err := os.Remove(filepath.Join(r.Dir, "mesh.d/broken.yaml")); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, time.Minute, "the condition is gone",
		func() bool { return len(conditions(t, r)) == 0 })
}

func TestMesh_RenamedFolderWithdrawsNothing(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	r.StartReady()
	folder := filepath.Join(r.Dir, "mesh.d")
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	rename(folder, folder+".away")
	rig.Eventually(t, time.Minute, "a condition names the folder and the cure", func() bool {
		standing := conditions(t, r)
		return len(standing) == 1 && strings.Contains(standing[0], folder) &&
			strings.Contains(standing[0], "mount or move it back")
	})
	if code, _, err := r.GetThroughEnvoy("/hello"); err != nil || code != 200 {
		t.Errorf("GET without the folder: %d %v", code, err)
	}
	rename(folder+".away", folder)
	rig.Eventually(t, time.Minute, "the condition is gone",
		func() bool { return len(conditions(t, r)) == 0 })
	if err := os.Remove(filepath.Join(folder, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, time.Minute, "a file that is deleted is withdrawn",
		func() bool { _, _, err := r.GetThroughEnvoy("/hello"); return err != nil })
}

// TestMesh_MissingFolderIsAwaited starts the agent while the folder of mesh files is missing. Its
// file system may not be mounted yet, and it may contain policies, so the agent does not serve
// until the folder exists. A reload does not change that.
func TestMesh_MissingFolderIsAwaited(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	folder := filepath.Join(r.Dir, "mesh.d")
	if err := os.Rename(folder, folder+".away"); err != nil {
		t.Fatal(err)
	}
	r.Start()
	rig.Eventually(t, time.Minute, "it is not ready, and says why", func() bool {
		ready, why := r.Ready()
		return !ready && strings.Contains(why, folder+":1: does not exist")
	})
	r.RunOutrider("reload")
	if ready, why := r.Ready(); ready || !strings.Contains(why, folder+":1: does not exist") {
		t.Errorf("after a reload: ready %v, %s", ready, why)
	}
	if err := os.Rename(folder+".away", folder); err != nil {
		t.Fatal(err)
	}
	r.WaitReady(60 * time.Second)
	rig.Eventually(t, time.Minute, "it serves", func() bool {
		code, _, err := r.GetThroughEnvoy("/hello")
		return err == nil && code == 200
	})
}
