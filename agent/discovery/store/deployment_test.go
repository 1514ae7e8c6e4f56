package store

import (
	"os"
	"strings"
	"testing"
)

// symlink creates a symbolic link in the mesh directory.
func (f *files) symlink(target, name string) {
	f.t.Helper()
	if err := os.Symlink(target, f.path(name)); err != nil {
		f.t.Fatal(err)
	}
}

// TestDeployments_CloseNothing: common ways of deploying files replace directories or links, while
// an agent runs or between two runs. All policies remain readable, so nothing is denied.
func TestDeployments_CloseNothing(t *testing.T) {
	for name, change := range map[string]func(f *files){
		"directory in place of the configured file": func(f *files) {
			f.write("x.yaml", deniesA)
			f.store.options.Paths = []string{f.path("x.yaml")}
			f.nextRun(false)
			f.nextRun(false)
			f.store.options.Paths = []string{f.directory}
		},
		"directory moved, link left": func(f *files) {
			f.write("policies/x.yaml", deniesA)
			f.nextRun(false)
			f.move(f.path("policies"), f.path("v2"))
			f.symlink("v2", "policies")
		},
		"second link to a directory": func(f *files) {
			other := f.t.TempDir()
			f.symlink(other, "b")
			f.write("b/x.yaml", deniesA)
			f.nextRun(false)
			f.symlink(other, "a")
		},
		"file in place of a directory": func(f *files) {
			f.write("x.yaml/p.yaml", deniesA)
			f.nextRun(false)
			f.remove("x.yaml")
			f.write("x.yaml", deniesA)
		},
		"files in a directory in place of the configured file": func(f *files) {
			f.write("mesh", deniesA)
			f.store.options.Paths = []string{f.path("mesh")}
			f.nextRun(false)
			f.remove("mesh")
			f.write("mesh/x.yaml", deniesA)
			f.store.Load()
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFiles(t)
			change(f)
			for range 2 {
				f.nextRun(false)
				if p, closed := f.store.PoliciesIncompleteProblem(); closed {
					t.Errorf("nothing is served: %s", p)
				}
				if all := f.denials(); len(all) > 0 || !f.hasPolicy("x") {
					t.Errorf("denied: %q, policy: %t, %q", all, f.hasPolicy("x"), f.problems())
				}
			}
		})
	}
}

// TestRecorded_DenialsStay: once a policy was denied because it was never valid, a denial for its
// file stays in force until the file is valid, even if it becomes empty or unreadable.
func TestRecorded_DenialsStay(t *testing.T) {
	for name, invalid := range map[string]string{
		"no name":       strings.Replace(deniesA, "  name: x\n", "  namespace: ns\n", 1),
		"unknown field": strings.Replace(deniesA, "selector", "selectr", 1),
		"syntax":        deniesA + "  a: [\n",
		"second":        deniesA + "---\n" + strings.Replace(deniesA, "  name: x\n", "  nam: z\n", 1),
	} {
		for _, text := range []string{"", "\x00\x00", "a: [", deniesA[:20]} {
			for _, restart := range []bool{false, true} {
				f := newFiles(t)
				f.write("x.yaml", invalid)
				f.nextRun(false)
				if len(f.denials()) == 0 {
					t.Fatalf("%s: nothing is denied: %q", name, f.problems())
				}
				f.write("x.yaml", text)
				if f.store.Load(); restart {
					f.nextRun(false)
				}
				if len(f.denials()) == 0 {
					t.Errorf("%s, then %q, restart %t: open; %q", name, text, restart, f.problems())
				}
				f.write("x.yaml", deniesA)
				if f.store.Load(); len(f.denials()) > 0 || !f.hasPolicy("x") {
					t.Errorf("%s, then %q, then valid: %q", name, text, f.problems())
				}
			}
		}
	}
}
