package discovery

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/discovery/view"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/watch"
)

// certificates tracks the files from which proxies on this host read certificates and trusted
// authorities. It is not safe for concurrent use; the server guards it by mu.
type certificates struct {
	watch  func(files []string) error // nil: the files are on other hosts
	denied Denied                     // nil: unknown
	logger *slog.Logger
	files  map[string]*certificateFile // watched files, by path
}

// Denied returns why proxies cannot read a file, and the cure: "user envoy cannot read /x: chmod
// 644 /x". It returns "" if they can read it, or if that is unknown.
type Denied func(path string) string

// access reports whether a file is missing, and otherwise what d says of it.
func (d Denied) access(path string) (missing bool, why string) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return true, ""
	}
	if d == nil {
		return false, ""
	}
	return false, d(path)
}

// certificateFile is the last known state of a file.
type certificateFile struct {
	stale   bool // must be read again
	missing bool
	denied  string // why the proxy cannot read it, and the cure; "" if it can
	held    uint64 // watch.Fingerprint of the last read
	// changes counts the changes of held. Restored content must differ from its first version, as
	// Envoy must read it again after it refused the version in between.
	changes uint64
}

// look implements view.Look. It watches files before it reads them, so that no change is missed.
func (c *certificates) look(secrets []translate.FileSecret) []view.Held {
	found := make([]view.Held, len(secrets))
	if c.watch == nil {
		return found
	}
	more := false
	for _, secret := range secrets {
		for _, path := range secret.Files() {
			if _, known := c.files[path]; !known && watchable(path) {
				c.files[path], more = &certificateFile{stale: true}, true
			}
		}
	}
	if more {
		c.set()
	}
	for i, secret := range secrets {
		var held []byte
		for _, path := range secret.Files() {
			file := c.read(path)
			if held = file.append(held); file != nil && file.missing &&
				!slices.Contains(found[i].Missing, path) {
				found[i].Missing = append(found[i].Missing, path)
			}
			if file != nil && file.denied != "" && !slices.Contains(found[i].Denied, file.denied) {
				found[i].Denied = append(found[i].Denied, file.denied)
			}
		}
		found[i].Fingerprint = max(crc32.ChecksumIEEE(held), 1) // 0 means unknown
	}
	return found
}

// watchable reports whether a path denotes the same file for Envoy, the agent and package watch.
func watchable(path string) bool { return filepath.IsAbs(path) && !strings.HasSuffix(path, "/...") }

// read returns the state of a file, and reads it again if it is stale; nil if it is not watched.
func (c *certificates) read(path string) *certificateFile {
	file := c.files[path]
	if file == nil || !file.stale {
		return file
	}
	held, err := watch.Fingerprint(path)
	if err != nil {
		c.logger.Warn("a changed certificate is taken with the next epoch only", "file", path,
			"error", err)
	}
	file.missing, file.denied = c.denied.access(path)
	if file.stale = false; held != file.held {
		file.held = held
		file.changes++
	}
	return file
}

func (f *certificateFile) append(content []byte) []byte {
	if f == nil {
		f = &certificateFile{}
	}
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(content, f.held), f.changes)
}

// changed returns the paths that are watched certificate files, and marks these files as stale.
func (c *certificates) changed(paths []string) map[string]bool {
	found := map[string]bool{}
	for _, path := range paths {
		if file := c.files[path]; file != nil {
			file.stale, found[path] = true, true
		}
	}
	return found
}

// keep stops watching all files except those that are used.
func (c *certificates) keep(used map[string]bool) {
	before := len(c.files)
	maps.DeleteFunc(c.files, func(path string, _ *certificateFile) bool { return !used[path] })
	if len(c.files) < before {
		c.set()
	}
}

func (c *certificates) set() {
	if err := c.watch(slices.Sorted(maps.Keys(c.files))); err != nil {
		c.logger.Warn("not all files of certificates are watched: a change of another is taken "+
			"with the next epoch only", "error", err)
	}
}

// certificateFiles returns the paths of all watched certificate files.
func (s *Server) certificateFiles() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.certificates.files))
}

// reread updates the views whose certificate files are among changed paths, and reports whether
// such files are. Callers hold mu.
func (s *Server) reread(paths []string) bool {
	files := s.certificates.changed(paths)
	if len(files) == 0 {
		return false
	}
	for _, v := range s.views {
		v.Reread(files)
	}
	return true
}

// watchCertificates stops watching files that no view uses any more. Callers hold mu.
func (s *Server) watchCertificates() {
	if s.certificates.watch == nil {
		return
	}
	used := map[string]bool{}
	for _, v := range s.views {
		v.FileSecrets(func(secret translate.FileSecret, _ resource.Origin) {
			for _, path := range secret.Files() {
				used[path] = true
			}
		})
	}
	s.certificates.keep(used)
}
