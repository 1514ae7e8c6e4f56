package access

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// User is a user with a primary group and supplementary ones.
type User struct {
	UID, GID uint32
	Groups   []uint32
}

// answerWait limits how long CheckAs waits for the file system.
const answerWait = 3 * time.Second

// CheckAs is Check for any user. Only root can call it. If the file system does not answer within
// answerWait, it returns an error and leaves a blocked thread behind; a long-running program must
// therefore not call it.
func CheckAs(user User, path string) (Result, error) {
	type answer struct {
		Result
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		var a answer
		// not unlocked: Go ends the thread, whose user has changed, with the goroutine
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// The main thread must not end or change its user. This goroutine occupies it while
			// CheckAs runs again, so the goroutine of that call has another thread.
			defer runtime.UnlockOSThread()
			a.Result, a.err = CheckAs(user, path)
		} else if a.err = becomeUser(user); a.err == nil {
			a.Result, a.err = Check(path)
		}
		answers <- a
	}()
	select {
	case a := <-answers:
		return a.Result, a.err
	case <-time.After(answerWait):
		return Result{}, fmt.Errorf("%s: the file system does not answer", path)
	}
}

// becomeUser changes the user of the calling thread only; package syscall would change all threads.
func becomeUser(user User) error {
	groups := append(slices.Clone(user.Groups), user.GID)
	uid, gid := uintptr(user.UID), uintptr(user.GID)
	_, _, failed := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)),
		uintptr(unsafe.Pointer(&groups[0])), 0)
	if failed == 0 {
		_, _, failed = unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid)
	}
	if failed == 0 {
		_, _, failed = unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid)
	}
	if failed != 0 {
		return os.NewSyscallError("become another user", failed)
	}
	return nil
}
