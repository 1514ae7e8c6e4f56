package parts

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Nobody is a user that is not root.
const Nobody = 65534

// As runs do as another user, in so far as it runs in the calling goroutine: files and sockets that
// it makes are that user's. It needs root.
func As(t testing.TB, uid int, do func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("tests of other users must run as root")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// The functions of the packages syscall and unix change all threads.
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
