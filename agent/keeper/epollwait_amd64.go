package keeper

import "golang.org/x/sys/unix"

// isEpollWait: the older call, which not every architecture has.
func isEpollWait(number int) bool { return number == unix.SYS_EPOLL_WAIT }
