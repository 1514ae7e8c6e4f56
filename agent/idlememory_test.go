package agent

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// After the pages of the running program are unmapped, less memory is resident and the program
// continues to run.
func TestReturnMemory_UnmapsTheProgram(t *testing.T) {
	before := residentFile(t)
	if err := returnMemory(); err != nil {
		t.Fatal(err)
	}
	if after := residentFile(t); after > before/2 {
		t.Errorf("%d kB of the program are resident, %d kB before", after, before)
	}
}

// residentFile returns the resident pages of files in kB.
func residentFile(t *testing.T) (kilobytes int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if n, _ := fmt.Sscanf(line, "RssFile: %d kB", &kilobytes); n == 1 {
			return kilobytes
		}
	}
	t.Fatal("no RssFile")
	return 0
}

func TestProgramMappings_LeavesChangedOnes(t *testing.T) {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := t.TempDir() + "/smaps"
	var smaps strings.Builder
	for _, m := range []struct {
		addresses, permissions, file string
		anonymous                    int
	}{
		{"00400000-00500000", "r-xp", program, 0},
		{"00500000-00600000", "r--p", program, 0},
		{"00600000-00700000", "r--p", program, 4}, // changed by relocations
		{"00700000-00800000", "rw-p", program, 0},
		{"00800000-00900000", "r-xp", "/usr/lib/libc.so.6", 0},
	} {
		fmt.Fprintf(&smaps, "%s %s 00000000 fe:00 12 %20s\nRss: 8 kB\nAnonymous: %10d kB\n",
			m.addresses, m.permissions, m.file, m.anonymous)
	}
	if err := os.WriteFile(path, []byte(smaps.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := programMappings(path)
	want := []mapping{{0x400000, 0x500000}, {0x500000, 0x600000}}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}
