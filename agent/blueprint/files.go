package blueprint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/config"
)

// The largest files, in bytes. A static bootstrap of a thousand services has some 2 MB; a token a
// few kB.
const (
	maxFile  = 64 << 20
	maxToken = 64 << 10
)

// readFile reads the file that a key names, if it is a regular one: a named pipe would wait for its
// writer for ever, a device may never end.
func readFile(loaded *config.Loaded, key, path string, atMost int64) ([]byte, *config.Error) {
	content, err := readRegular(path, atMost)
	if err == nil {
		return content, nil
	}
	cure := "name another file, or remove the key"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		cure = "create it, or remove the key"
	case errors.Is(err, fs.ErrPermission):
		cure = "let the agent's user read it"
	}
	if wrong, ok := errors.AsType[*fs.PathError](err); ok {
		err = wrong.Err // the path is told already
	}
	return nil, loaded.Fault(key, fmt.Sprintf("%s cannot be read: %v", path, err), cure).Because(err)
}

var errNotRegular = errors.New("it is not a regular file")

func readRegular(path string, atMost int64) ([]byte, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errNotRegular // and is not opened: to open a device may do something
	}
	// it may have become a named pipe meanwhile
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
		return nil, fmt.Errorf("it is larger than %d bytes", atMost)
	}
	return content, err
}
