package capture

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

// After outrider-capture ran out of file descriptors, it accepts clients again once some are free.
func TestHelper_AcceptsAgainAfterAFailure(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	pid := r.helper.Process.Pid
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	var before unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	few := unix.Rlimit{Cur: uint64(len(open)), Max: before.Max}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(r.folder, "capture.sock")
	waiting, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = waiting.Close() }()
	parts.Eventually(t, time.Minute, "the helper cannot accept", func() bool {
		return strings.Contains(fmt.Sprint(r.helper.Stderr), "accept an agent")
	})
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil); err != nil {
		t.Fatal(err)
	}
	parts.Eventually(t, time.Minute, "the helper accepts", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		client, err := Dial(ctx, path)
		if err != nil {
			return false
		}
		defer client.Close()
		_, err = client.Status(ctx)
		return err == nil
	})
}
