package main_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/rig"
)

// TestLastGood_OutlivesAgent makes a file invalid that all requests depend on, and kills the agent
// twice. Each later agent still serves the last good version of the file, and other changes take
// effect.
func TestLastGood_OutlivesAgent(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	r.StartReady()
	remembered := filepath.Join(r.Dir, "state", "mesh-last-good.json")
	if _, err := os.Stat(remembered); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing is bad, and yet: %v", err)
	}
	r.WriteFile("mesh.d/web.yaml", strings.Replace(r.WebServiceYAML(r.Ports.Backend), "STATIC",
		"STATISCH",
		1))
	rig.Eventually(t, time.Minute, "the agent remembers what it serves", func() bool {
		info, err := os.Stat(remembered)
		return err == nil && info.Mode() == 0o600
	})

	stop := asking(r)
	for i := range 4 {
		if i%2 == 0 {
			r.KillAgent()
		}
		r.WriteFile("mesh.d/routes.yaml", fmt.Sprintf("apiVersion: networking.istio.io/v1\n"+
			"kind: VirtualService\nmetadata: {name: web, namespace: default}\nspec:\n"+
			"  hosts: [web.test]\n  http:\n"+
			"  - {match: [{uri: {exact: /new%d}}], directResponse: {status: 418}}\n"+
			"  - route: [{destination: {host: web.test}}]\n", i))
		if i%2 == 0 {
			r.StartReady()
		}
		rig.Eventually(t, time.Minute, "Envoy does what the next agent says", func() bool {
			code, _, err := r.GetThroughEnvoy(fmt.Sprintf("/new%d", i))
			return err == nil && code == 418
		})
	}
	if wrong := stop(); len(wrong) > 0 {
		t.Errorf("%d requests were lost: %q", len(wrong), wrong)
	}
	if told := r.RunOutrider("mesh", "check"); told.ExitCode != api.ExitRefused ||
		!strings.Contains(told.Stderr, "STATISCH") {
		t.Errorf("check: exit %d: %s%s", told.ExitCode, told.Stdout, told.Stderr)
	}

	r.WriteFile("mesh.d/web.yaml", r.WebServiceYAML(r.Ports.Backend))
	rig.Eventually(t, time.Minute, "nothing is bad and nothing remembered", func() bool {
		_, err := os.Stat(remembered)
		return errors.Is(err, fs.ErrNotExist) && r.RunOutrider("mesh", "check").ExitCode == 0
	})
}
