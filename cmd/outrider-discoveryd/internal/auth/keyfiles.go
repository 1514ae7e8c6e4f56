package auth

import (
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"

	"outrider.org/outrider/agent/jwt"
	"outrider.org/outrider/agent/readfile"
)

// keyFiles caches the parsed keys of files, because every token needs them. It reads a file again
// when it may have changed. Failures are not cached.
type keyFiles struct {
	mu   sync.Mutex
	read map[string]readKeys // by path; those of the configuration only
}

type readKeys struct {
	of   version
	keys jwt.Keys
}

// version identifies the content of a file that has not changed for restTime.
type version struct {
	device, inode    uint64
	size             int64
	modified, status time.Time
}

// restTime is how long a file must not have changed before its version identifies its content. It is
// longer than a tick of the clock of any file system of Linux.
const restTime = 2 * time.Second

func versionOf(info fs.FileInfo) (version, bool) {
	of, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return version{}, false
	}
	v := version{of.Dev, of.Ino, of.Size, time.Unix(of.Mtim.Unix()), time.Unix(of.Ctim.Unix())}
	rested := time.Now().Add(-restTime)
	return v, v.modified.Before(rested) && v.status.Before(rested)
}

// get returns the keys in a file. parse converts the file's text.
func (k *keyFiles) get(path string, parse func(text []byte) (jwt.Keys, error)) (jwt.Keys, error) {
	info, err := os.Stat(path)
	if err != nil {
		return jwt.Keys{}, err
	}
	now, rested := versionOf(info)
	k.mu.Lock()
	known, ok := k.read[path]
	k.mu.Unlock()
	if ok && rested && known.of == now {
		return known.keys, nil
	}
	text, err := readfile.Read(path, maxKeySetBytes)
	if err != nil {
		return jwt.Keys{}, err
	}
	keys, err := parse(text)
	if err != nil {
		return jwt.Keys{}, err
	}
	if rested { // a change after Stat results in another version
		k.mu.Lock()
		k.read[path] = readKeys{now, keys}
		k.mu.Unlock()
	}
	return keys, nil
}

func newKeyFiles() *keyFiles { return &keyFiles{read: map[string]readKeys{}} }

// parseKeySet parses a key set. One without keys is no error: it verifies no token.
func parseKeySet(text []byte) (jwt.Keys, error) { return jwt.ParseKeys(string(text)), nil }
