package epoch

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// reapPause is the pause between two checks whether an exited process was reaped.
const reapPause = 20 * time.Millisecond

// awaitExit blocks until a process, which need not be a child, has been reaped. It returns false if
// ctx ends first. If the kernel cannot watch processes, it waits for the end of ctx and returns
// false.
func awaitExit(ctx context.Context, pid int) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return true
	}
	if err == nil {
		err = unix.SetNonblock(fd, true) // Go's poller requires a non-blocking descriptor
	}
	if err != nil {
		<-ctx.Done()
		return false
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	defer func() { _ = file.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := file.SyscallConn()
	if err != nil {
		return false
	}
	ended := false
	err = raw.Read(func(fd uintptr) bool { // called again when the descriptor is readable
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, 0)
		ended = err == nil && n > 0
		return ended
	})
	// A keeper that re-executes itself reaps an exited child, and reports the exit, only after the
	// re-execution.
	for ended && !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		ended = sleep(ctx, reapPause)
	}
	return err == nil && ended
}
