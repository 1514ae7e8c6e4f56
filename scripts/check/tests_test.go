package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/scripts/parts"
)

func TestFollowCounts(t *testing.T) {
	cases := []struct {
		name, events string
		want         result
		shows, hides []string
	}{
		{"tests and sub-tests", `
{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    chatter\n"}
{"Action":"pass","Package":"p","Test":"TestA/sub"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    reason\n"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"skip","Package":"p","Test":"TestC"}
{"Action":"fail","Package":"p","Elapsed":1.5}
{"Action":"pass","Package":"q","Elapsed":2}`,
			result{passed: 2, failed: 1, failures: []failure{
				{pack: "p", test: "TestB", count: 1, why: "--- FAIL p TestB (0.0 s)\n"},
			}}, []string{"FAIL p TestB", "reason", "SKIP p TestC", "FAIL p (1.5 s)",
				"ok   q (2.0 s)"}, []string{"chatter"}},
		{"what a test says", `
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: 1 is not 2:\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"        a journal\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    host.go:70: ` + strings.Repeat("é",
			300) + `\n"}
{"Action":"fail","Package":"p","Test":"TestA","Elapsed":3}`,
			result{failed: 1, failures: []failure{{
				pack: "p", test: "TestA", count: 1,
				why: "--- FAIL p TestA (3.0 s)\n    a_test.go:7: 1 is not 2:\n    host.go:70: " +
					strings.Repeat("é", 192) + "…\n",
			}}},
			[]string{"a journal"}, nil},
		{"a package that does not build", `
{"ImportPath":"p [p.test]","Action":"build-output","Output":"p/x.go:1: undefined\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"output","Package":"p","Output":"FAIL p [build failed]\n"}
{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}`,
			result{failed: 1, failures: []failure{
				{pack: "p", count: 1, why: "FAIL p [build failed]\nFAIL p (0.0 s)\n"},
			}}, []string{"undefined", "build failed"}, nil},
		{"a package that fails after its tests passed", `
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"goleak: found unexpected goroutines\n"}
{"Action":"fail","Package":"p"}`,
			result{passed: 1, failed: 1, failures: []failure{
				{pack: "p", count: 1, why: "goleak: found unexpected goroutines\nFAIL p (0.0 s)\n"},
			}}, []string{"goleak"}, nil},
		{"sub-tests count as their test", `
{"Action":"fail","Package":"p","Test":"TestA/one"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`,
			result{failed: 2, failures: []failure{{
				pack: "p", test: "TestA", count: 2,
				why: "--- FAIL p TestA/one (0.0 s)\n--- FAIL p TestA (0.0 s)\n",
			}}}, nil, nil},
		{"a panic keeps other tests from running", `
{"Action":"output","Package":"p","Test":"TestA","Output":"panic: oops\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`,
			result{failed: 1, failures: []failure{
				{pack: "p", count: 1, why: "--- FAIL p TestA (0.0 s)\n"},
			}}, nil, nil},
		{"no tests at all", `{"Action":"skip","Package":"p"}`, result{}, nil, []string{"p"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			got := collect(strings.NewReader(strings.TrimSpace(c.events)), &out)
			got.durations = nil // durations_test.go tests the durations
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(result{}, failure{},
				testRun{})); diff != "" {
				t.Errorf("follow (-want +got):\n%s", diff)
			}
			for _, text := range c.shows {
				if !strings.Contains(out.String(), text) {
					t.Errorf("%q is not shown in:\n%s", text, out.String())
				}
			}
			for _, text := range c.hides {
				if strings.Contains(out.String(), text) {
					t.Errorf("%q is shown in:\n%s", text, out.String())
				}
			}
		})
	}
}

func TestGoTest_UsesTagsOfPrograms(t *testing.T) {
	for flags, want := range map[string]string{
		"":                    "-tags=a,b",
		"-tags=a,b":           "-tags=a,b",
		"-mod=mod":            "-mod=mod -tags=a,b",
		"-tags=a,b  -mod=mod": "-tags=a,b -mod=mod -tags=a,b",
		"-tags=c":             "-tags=c -tags=a,b",
	} {
		if got := withTags(flags, "a,b"); got != want {
			t.Errorf("%q becomes %q, want %q", flags, got, want)
		}
	}
	t.Setenv("GOFLAGS", "-tags=another")
	t.Chdir(parts.RepositoryRoot())
	if err := setTags(); err != nil {
		t.Fatal(err)
	}
	programs, err := os.ReadFile("scripts/tags")
	if err != nil {
		t.Fatal(err)
	}
	for _, tag := range strings.Split(strings.TrimSpace(string(programs)), ",") {
		out, err := output(t.Context(), "go", "list", "-f", "{{context.BuildTags}}",
			"./scripts/check")
		if err != nil || !strings.Contains(out, tag) {
			t.Errorf("the go command builds with %s, %v, and not with %s", out, err, tag)
		}
	}
	t.Chdir(t.TempDir())
	if err := setTags(); err == nil {
		t.Error("another folder than the repository's root will do")
	}
}

func TestFindTargets(t *testing.T) {
	text := "func FuzzLine(f *testing.F) {\nfunc FuzzNot(t *testing.T) {\nfunc (x) FuzzNeither(f " +
		"*testing.F) {}\n"
	matches := fuzzFunction.FindAllStringSubmatch(text, -1)
	if len(matches) != 1 || matches[0][1] != "FuzzLine" {
		t.Errorf("found %q", matches)
	}
}
