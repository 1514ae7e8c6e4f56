package blueprint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/config"
)

// Limits of file sizes, in bytes. For comparison: a static bootstrap of a thousand services is
// about 2 MB, a token a few kB.
const (
	maxFile  = 64 << 20
	maxToken = 64 << 10
)

// readFile reads the file that a key names. It rejects files that are not regular, because reading
// a named pipe or a device may block indefinitely.
func readFile(loaded *config.Loaded, key, path string, atMost int64) ([]byte, *config.Error) {
	content, err := readRegular(path, atMost)
	if err == nil {
		return content, nil
	}
	fix := "name another file, or remove the key"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		fix = "create it, or remove the key"
	case errors.Is(err, fs.ErrPermission):
		fix = "let the agent's user read it"
		if _, command, found := strings.Cut(OwnUserAccess().ReadDenialReason(path),
			path+": "); found {
			fix = command
		}
	}
	if wrong, ok := errors.AsType[*fs.PathError](err); ok {
		err = wrong.Err // the message below adds the path
	}
	return nil, loaded.KeyError(key, fmt.Sprintf("%s cannot be read: %v", path, err),
		fix).WithCause(err)
}

var errNotRegular = errors.New("the path is not a regular file")

func readRegular(path string, atMost int64) ([]byte, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errNotRegular // opening a device may have side effects
	}
	// O_NONBLOCK: a named pipe may have replaced the file since Stat.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errNotRegular
	}
	content, err := io.ReadAll(io.LimitReader(file, atMost+1))
	if err == nil && int64(len(content)) > atMost {
		return nil, fmt.Errorf("the file is larger than %d bytes", atMost)
	}
	return content, err
}
