package reexec

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigaction is struct sigaction of 64-bit Linux kernels.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

const sigIgn = 1

// Ignore makes the kernel ignore a signal until restore is called or, after Exec, until the next
// image handles the signal. signal.Ignore is not sufficient: it stops handling the signal before it
// ignores it, and a signal in between would end the process.
func Ignore(signal unix.Signal) (restore func()) {
	var before sigaction
	set(signal, &sigaction{handler: sigIgn}, &before)
	return func() { set(signal, &before, nil) }
}

// set calls rt_sigaction, which fails only for invalid signals.
func set(signal unix.Signal, action, before *sigaction) {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal),
		uintptr(unsafe.Pointer(action)), uintptr(unsafe.Pointer(before)),
		unsafe.Sizeof(action.mask), 0, 0)
}
