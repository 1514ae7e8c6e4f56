//go:build !amd64

package keeper

func isEpollWait(int) bool { return false }
