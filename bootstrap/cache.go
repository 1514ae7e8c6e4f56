package bootstrap

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// maxCached is the largest bootstrap that is cached, in bytes. An ordinary one has 20 kB.
const maxCached = 8 << 20

// cached is the content of the cache file (JSON).
type cached struct {
	Question string // hash of the input and the program; see identify
	Sum      string // SHA-256 of Rendered, hexadecimal, to detect a damaged file
	Rendered json.RawMessage
}

// identify returns a hash of a question and of the program that answers it. The inode and its time
// of change distinguish builds that a package installs with the same modification time.
func (p *RenderProgram) identify(question []byte) (string, error) {
	path, err := p.find()
	if err != nil {
		return "", err
	}
	var file unix.Stat_t
	if err := unix.Stat(path, &file); err != nil {
		return "", runError(fmt.Errorf("cannot stat %s: %w", path, err))
	}
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "%q %q %d %d %d %v %v\n", p.ExpectedVersion, path, file.Dev, file.Ino,
		file.Size, file.Mtim, file.Ctim)
	_, _ = sum.Write(question)
	return fmt.Sprintf("%x", sum.Sum(nil)), nil
}

// loadCache returns the cached answer to a question, nil if there is none.
func (p *RenderProgram) loadCache(question string) *Rendered {
	file, err := os.OpenFile(p.CachePath, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxCached+1))
	if err != nil || len(text) > maxCached {
		return nil
	}
	var known cached
	if json.Unmarshal(text, &known) != nil || known.Question != question ||
		known.Sum != sumOf(known.Rendered) {
		return nil
	}
	var rendered *Rendered
	if json.Unmarshal(known.Rendered, &rendered) != nil {
		return nil
	}
	return rendered
}

// storeCache replaces the cached answer. Only the owner may read it, as it may hold secrets.
func (p *RenderProgram) storeCache(question string, rendered *Rendered) error {
	text, err := json.Marshal(rendered)
	if err == nil {
		text, err = json.Marshal(cached{Question: question, Sum: sumOf(text), Rendered: text})
	}
	switch {
	case err != nil:
	case len(text) > maxCached:
		err = fmt.Errorf("the bootstrap has more than %d bytes", maxCached)
	default:
		err = renameio.WriteFile(p.CachePath, text, 0o600, renameio.IgnoreUmask(),
			renameio.WithTempDir(filepath.Dir(p.CachePath)))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", p.CachePath, err)
	}
	return nil
}

func sumOf(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }
