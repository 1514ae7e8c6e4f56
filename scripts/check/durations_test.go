package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFollow_RecordsDurationsOfPackagesAndTopLevelTests(t *testing.T) {
	got := collect(strings.NewReader(strings.TrimSpace(`
{"Action":"pass","Package":"p","Test":"TestA/sub","Elapsed":3}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":3.5}
{"Action":"fail","Package":"p","Test":"TestB","Elapsed":0.25}
{"Action":"skip","Package":"p","Test":"TestC"}
{"Action":"fail","Package":"p","Elapsed":4}
{"Action":"pass","Package":"q","Elapsed":2}
{"Action":"skip","Package":"r"}`)), &strings.Builder{}).durations
	want := []duration{
		{Package: "p", Test: "TestA", Seconds: 3.5},
		{Package: "p", Test: "TestB", Seconds: 0.25},
		{Package: "p", Seconds: 4},
		{Package: "q", Seconds: 2},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("durations (-want +got):\n%s", diff)
	}
}

func TestDurations_AllPackagesAndSlowestTestsAreStored(t *testing.T) {
	all := []duration{{Package: "quick", Seconds: 0.5}, {Package: "slow", Seconds: 30}}
	for i := range slowestTests + 5 {
		all = append(all, duration{Package: "slow", Test: fmt.Sprintf("Test%d", i),
			Seconds: float64(i)})
	}
	all = append(all, duration{Package: "slow", Test: "TestLife", Seconds: 99, Systemd: "trixie"})
	d := slowest(all)

	path := filepath.Join(t.TempDir(), "tests.json")
	if err := d.store(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var stored durations
	if err := json.Unmarshal(text, &stored); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d, stored); diff != "" {
		t.Errorf("stored durations (-want +got):\n%s", diff)
	}
	if len(d.Packages) != 2 || len(d.Tests) != slowestTests || d.Tests[0].Test != "TestLife" ||
		d.Tests[slowestTests-1].Test != "Test6" {
		t.Errorf("kept %+v", d)
	}

	var out strings.Builder
	d.print(&out)
	for _, line := range []string{"   30.0 s  slow\n", "   99.0 s  slow TestLife on trixie\n",
		"    6.0 s  slow Test6\n"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("%q is not in:\n%s", line, out.String())
		}
	}
	if strings.Contains(out.String(), "quick") || strings.Contains(out.String(), "Test5\n") {
		t.Errorf("more than the slowest in:\n%s", out.String())
	}
	if err := d.store(filepath.Join(path, "below-a-file")); err == nil {
		t.Error("a file that cannot be written is no error")
	}
}
