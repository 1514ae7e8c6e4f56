package reexec

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigaction is the kernel's struct sigaction of 64-bit systems.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

const sigIgn = 1

// Ignore ignores a signal until restore is called, also in the next image until that handles it.
// signal.Ignore would end the process if the signal came between its two steps.
func Ignore(signal unix.Signal) (restore func()) {
	var before sigaction
	set(signal, &sigaction{handler: sigIgn}, &before)
	return func() { set(signal, &before, nil) }
}

// set calls rt_sigaction, which fails for invalid signals only.
func set(signal unix.Signal, action, before *sigaction) {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal),
		uintptr(unsafe.Pointer(action)), uintptr(unsafe.Pointer(before)),
		unsafe.Sizeof(action.mask), 0, 0)
}
