package journal

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// stream parses $JOURNAL_STREAM, DEVICE:INODE (systemd.exec(5)).
func stream(text string) (device, inode uint64, ok bool) {
	first, second, ok := strings.Cut(text, ":")
	if !ok {
		return 0, 0, false
	}
	device, err := strconv.ParseUint(first, 10, 64)
	if err != nil {
		return 0, 0, false
	}
	inode, err = strconv.ParseUint(second, 10, 64)
	return device, inode, err == nil
}

func identity(file *os.File) (device, inode uint64, err error) {
	var status unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &status); err != nil {
		return 0, 0, fmt.Errorf("look at %s: %w", file.Name(), err)
	}
	return status.Dev, status.Ino, nil
}
