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

// maxCached is the largest file that remembers a bootstrap, in bytes. An ordinary one has 20 kB; what is larger is rendered each time.
const maxCached = 8 << 20

// cached is what the file of a Program's Cache holds, in JSON: the answer to one question.
type cached struct {
	Question string // see identify
	Sum      string // SHA-256 of Rendered, hexadecimal: a file that was damaged is no answer
	Rendered json.RawMessage
}

// identify tells questions apart, and the programs they were put to (SHA-256, hexadecimal): another build of one renders anew. A package
// may put a program of another build in place with the time of the source, but not with the same inode and time of change.
func (p *Program) identify(question []byte) (string, error) {
	path, err := p.find()
	if err != nil {
		return "", err
	}
	var file unix.Stat_t
	if err := unix.Stat(path, &file); err != nil {
		return "", notRun(fmt.Errorf("look at %s: %w", path, err))
	}
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "%q %q %d %d %d %v %v\n", p.Version, path, file.Dev, file.Ino, file.Size, file.Mtim, file.Ctim)
	_, _ = sum.Write(question)
	return fmt.Sprintf("%x", sum.Sum(nil)), nil
}

// recall returns the answer that the cache has to a question; nil: it has none, or none that is whole.
func (p *Program) recall(question string) *Rendered {
	file, err := os.OpenFile(p.Cache, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxCached+1))
	if err != nil || len(text) > maxCached {
		return nil
	}
	var known cached
	if json.Unmarshal(text, &known) != nil || known.Question != question || known.Sum != sumOf(known.Rendered) {
		return nil
	}
	var rendered *Rendered
	if json.Unmarshal(known.Rendered, &rendered) != nil {
		return nil
	}
	return rendered
}

// remember puts an answer in the cache, in the place of the one before. It may hold secrets, so that nobody else may read it.
func (p *Program) remember(question string, rendered *Rendered) error {
	text, err := json.Marshal(rendered)
	if err == nil {
		text, err = json.Marshal(cached{Question: question, Sum: sumOf(text), Rendered: text})
	}
	switch {
	case err != nil:
	case len(text) > maxCached:
		err = fmt.Errorf("it has more than %d bytes", maxCached)
	default:
		err = renameio.WriteFile(p.Cache, text, 0o600, renameio.IgnoreUmask(), renameio.WithTempDir(filepath.Dir(p.Cache)))
	}
	if err != nil {
		return fmt.Errorf("remember the bootstrap in %s: %w", p.Cache, err)
	}
	return nil
}

func sumOf(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }
