package parts

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// ContextSwitches returns the number of voluntary and involuntary context switches of all threads
// of a process since they started.
func ContextSwitches(t testing.TB, pid int) (n int) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("process %d has no threads: %v", pid, err)
	}
	for _, path := range threads {
		status, _ := os.ReadFile(path) // the thread may have exited
		for line := range strings.Lines(string(status)) {
			name, value, _ := strings.Cut(line, ":")
			if !strings.HasSuffix(name, "ctxt_switches") {
				continue
			}
			count, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				t.Fatal(err)
			}
			n += count
		}
	}
	return n
}
