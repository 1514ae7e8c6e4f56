package keeper

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// blockSignals blocks, on the calling thread, the signals that would end the re-executed keeper
// before it has installed handlers. unblockSignals must be called on the main thread before the
// first fork.
func blockSignals() error { return changeMask(unix.SIG_BLOCK) }

func unblockSignals() { _ = changeMask(unix.SIG_UNBLOCK) }

func changeMask(how int) error {
	var set unix.Sigset_t
	// Bit n-1 of the set is signal n.
	const bits = uint(unsafe.Sizeof(set.Val[0])) * 8
	for _, s := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGPIPE,
		unix.SIGUSR2, unix.SIGCHLD} {
		set.Val[uint(s-1)/bits] |= 1 << (uint(s-1) % bits)
	}
	return unix.PthreadSigmask(how, &set, nil)
}
