package agent

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// startGCPercent is Go's GC percentage until returnMemory is called. Most of what a start allocates
// stays in use, so collecting it only competes with the starting Envoy for the processors.
const startGCPercent = 400

// idleGCPercent is Go's GC percentage after the start. The agent then idles for days, so a small
// heap is worth more than a little CPU time.
const idleGCPercent = 40

// returnMemory returns memory to the kernel that only the start needed: free heap, and the mapped
// pages of the program's file, most of which initialise packages. The kernel maps pages that are
// used later again from the page cache.
func returnMemory() error {
	debug.SetGCPercent(idleGCPercent)
	defer debug.FreeOSMemory()
	mappings, err := programMappings("/proc/self/smaps")
	if err != nil {
		return err
	}
	for _, m := range mappings {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start,
			unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("release the memory of the program's file (madvise): %w", errno)
		}
	}
	return nil
}

type mapping struct{ start, end uintptr }

// programMappings returns the mappings of the program's file whose pages equal the file. If pages
// of its other mappings were released, what the program, relocations or a debugger wrote to them
// would be lost.
func programMappings(smaps string) ([]mapping, error) {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	file, err := os.Open(smaps)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	var unchanged []mapping
	var current mapping
	ofProgram := false
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := lines.Text()
		var m mapping
		var permissions string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &m.start, &m.end, &permissions); n == 3 {
			current = m
			ofProgram = strings.HasSuffix(line, " "+program) && strings.HasPrefix(permissions, "r-")
		} else if ofProgram && strings.HasPrefix(line, "Anonymous:") &&
			strings.HasSuffix(line, " 0 kB") {
			unchanged = append(unchanged, current)
		}
	}
	return unchanged, lines.Err()
}
