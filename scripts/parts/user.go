package parts

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// NobodyUID is the UID of an unprivileged user, nobody on Debian.
const NobodyUID = 65534

// RunAs calls do with the effective UID of another user: files and sockets that the calling
// goroutine creates belong to that user. It requires root.
func RunAs(t testing.TB, uid int, do func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("tests of other users must run as root")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// The functions of packages syscall and unix would change the UID of all threads.
	change := func(euid int) {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(euid),
			^uintptr(0)); errno != 0 {
			t.Fatalf("become user %d: %v", euid, errno)
		}
	}
	change(uid)
	defer change(0)
	do()
}
