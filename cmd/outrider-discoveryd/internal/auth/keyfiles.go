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

// keyFiles caches the parsed keys of files, because the verification of each token needs them. It
// reads a file again if the file may have changed. It does not cache failures.
type keyFiles struct {
	mu   sync.Mutex
	read map[string]readKeys // by path; only configured paths occur
}

type readKeys struct {
	of   version
	keys jwt.Keys
}

// version is metadata of a file. It identifies the file's content only if the file has not changed
// for restTime: two writes within one tick of the file system's clock have equal times.
type version struct {
	device, inode    uint64
	size             int64
	modified, status time.Time
}

// restTime is how long a file must be unchanged before its version identifies its content. It is
// longer than one tick of the clock of any Linux file system.
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

// get returns the keys in a file. parse parses the content of the file.
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
	// If the file changes after Stat, the next call reads another version and therefore parses the
	// file again.
	if rested {
		k.mu.Lock()
		k.read[path] = readKeys{now, keys}
		k.mu.Unlock()
	}
	return keys, nil
}

func newKeyFiles() *keyFiles { return &keyFiles{read: map[string]readKeys{}} }

// parseKeySet parses a JWKS. An invalid one results in a set without keys, which verifies no token.
func parseKeySet(text []byte) (jwt.Keys, error) { return jwt.ParseKeys(string(text)), nil }
