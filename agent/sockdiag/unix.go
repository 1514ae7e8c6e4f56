package sockdiag

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// UnixSocket is a bound Unix socket, or a connection accepted from it.
type UnixSocket struct {
	Accepted bool
	Inode    uint32
	Path     string // begins with "@" if it is an abstract name
}

// EachUnixSocket calls visit for each Unix socket with a path. It reads the file net/unix in proc,
// the mount point of procfs.
func EachUnixSocket(proc string, visit func(UnixSocket)) error {
	file, err := os.Open(filepath.Join(proc, "net", "unix"))
	if err != nil {
		return fmt.Errorf("list Unix sockets: %w", err)
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var fields [7]string // columns: num refcount protocol flags type state inode
		path := lines.Text()
		for i := range fields {
			fields[i], path, _ = strings.Cut(strings.TrimLeft(path, " "), " ")
		}
		inode, err := strconv.ParseUint(fields[6], 10, 32)
		if err != nil || path == "" {
			continue // the header line, or a client's socket, which has no path
		}
		const connected = "03" // SS_CONNECTED
		visit(UnixSocket{fields[5] == connected, uint32(inode), path})
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("list Unix sockets: %w", err)
	}
	return nil
}
