package store

import (
	"os"
	"strings"
	"testing"
)

// open reports whether a policy is no longer in force, and no denial replaces it.
func (f *files) open(name string) bool {
	_, closed := f.store.PoliciesIncompleteProblem()
	return !closed && !f.hasPolicy(name) && len(f.denials()) == 0
}

// TestRecorded_BrokenBetweenRuns breaks a file with a policy while no agent runs, so that its text
// does not mention a policy any more. Because the number of its policies is recorded, everything is
// denied until the file is corrected.
func TestRecorded_BrokenBetweenRuns(t *testing.T) {
	f := newFiles(t)
	for name, text := range map[string]string{
		"NUL bytes":     strings.Repeat("\x00", len(deniesA)),
		"0 bytes":       "",
		"ansible-vault": "$ANSIBLE_VAULT;1.1;AES256\n66386439653236336462626566653063336164\n",
		"cut off":       deniesA[:20],
		"error page":    "<html><body>502 Bad Gateway</body></html>\n",
		"LFS pointer":   "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
	} {
		f.write("x.yaml", deniesA)
		f.write("other.yaml", "a: [")
		f.nextRun(false)
		f.expectDenials(name + ", before")
		f.write("x.yaml", text)
		for range 2 {
			f.nextRun(false)
			f.expectDenials(name, "all at 1")
		}
		f.write("x.yaml", "a: [")
		f.expectDenials(name+", still broken", "all at 1")
		f.write("x.yaml", "# none\n")
		f.expectDenials(name + ", corrected")
		f.write("x.yaml", "a: [")
		f.expectDenials(name + ", broken without policies")
		f.remove("x.yaml")
		f.store.Load()
		if got := f.store.PolicyCountsByFile(); len(got) > 0 {
			t.Errorf("%s: recorded %v", name, got)
		}
	}
}

// TestRecorded_LastGoodLost: if only some of the last good policies of a broken file are known
// after a restart, everything is denied until the file is corrected.
func TestRecorded_LastGoodLost(t *testing.T) {
	two := deniesA + "---\n" + strings.Replace(deniesA, "name: x", "name: z", 1)
	f := newFiles(t)
	f.write("x.yaml", two)
	f.write("known.yaml", entry("a", "a.test"))
	f.nextRun(false)
	f.write("x.yaml", "a: [")
	f.expectDenials("running")
	f.nextRun(false)
	f.expectDenials("both are known")
	options := f.store.options
	options.LastGood, options.PolicyCountsByFile = f.store.LastGoodObjects()[:1], f.store.PolicyCountsByFile()
	f.store = New(options)
	f.expectDenials("one is known", "all at 1")
	f.nextRun(false)
	f.expectDenials("one is known, the next agent", "all at 1")
	f.nextRun(true)
	f.expectDenials("the record is lost", "all at 1")
	f.nextRun(false)
	f.expectDenials("the record is lost, the next agent", "all at 1")
	f.write("new.yaml", "a: [")
	f.write("x.yaml", two)
	f.expectDenials("corrected")
}

// TestRecorded_Emptied truncates a file with a policy while the agent runs: the objects of the file
// stay in force until the file has content again.
func TestRecorded_Emptied(t *testing.T) {
	f := newFiles(t)
	f.write("x.yaml", deniesA+"---\n"+entry("a", "a.test"))
	f.write("a.yaml", entry("b", "b.test"))
	f.store.Load()
	f.write("x.yaml", "")
	f.write("a.yaml", "")
	for range 2 {
		f.expectDenials("emptied")
		f.expectProblems("x.yaml:1: is empty but had policies before, so it may be truncated; " +
			"write it " +
			"again, or a comment if its policies are to end")
		if got := len(f.store.Objects("ns")); got != 2 {
			t.Errorf("%d objects are in force", got)
		}
		f.again()
	}
	f.write("x.yaml", "# none\n")
	f.store.Load()
	f.expectProblems()
	if f.hasPolicy("x") {
		t.Error("the policy is in force")
	}
}

// TestRecorded_ConfiguredFile removes a configured file with a policy, or leaves in its place an
// empty directory, an empty file or a dangling link. The policy stays in force, or a new agent
// serves nothing.
func TestRecorded_ConfiguredFile(t *testing.T) {
	for left, closed := range map[string]string{
		"directory":      "is empty, and may be a mount point",
		"nothing":        "does not exist",
		"empty file":     "",
		"dangling link":  "does not exist",
		"unchanged file": "",
	} {
		for _, when := range []string{"running", "next agent"} {
			f := newFiles(t)
			f.write("x.yaml", deniesA)
			f.store.options.Paths = []string{f.path("x.yaml")}
			f.nextRun(false)
			if left != "unchanged file" {
				f.remove("x.yaml")
			}
			switch left {
			case "directory":
				if err := os.Mkdir(f.path("x.yaml"), 0o755); err != nil {
					t.Fatal(err)
				}
			case "dangling link":
				if err := os.Symlink("nothing", f.path("x.yaml")); err != nil {
					t.Fatal(err)
				}
			case "empty file":
				f.write("x.yaml", "")
			}
			if when == "running" {
				f.store.Load()
				f.closedBy(left+", "+when, "")
			}
			for range 2 {
				if when != "running" {
					f.nextRun(false)
					f.closedBy(left+", "+when, closed)
				}
				if f.open("x") {
					t.Errorf("%s, %s: open, problems %q", left, when, f.problems())
				}
				f.store.Load()
			}
			if _, appeared := f.store.AwaitsMissingPaths(); appeared {
				t.Errorf("%s, %s: it is said to be there", left, when)
			}
			f.remove("x.yaml")
			f.write("x.yaml", "# none\n")
			f.store.Load()
			f.closedBy(left+", "+when+", confirmed", "")
			f.expectProblems()
			if f.hasPolicy("x") {
				t.Errorf("%s, %s: the policy is in force", left, when)
			}
		}
	}
}
