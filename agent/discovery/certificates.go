package discovery

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"outrider.org/outrider/agent/credential"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/discovery/view"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/watch"
)

const (
	// inspectWait is how long the server waits for a file system to answer.
	inspectWait = 100 * time.Millisecond
	reloadWait  = 2 * time.Second  // the same for a reload, which a missing answer refuses
	checkWait   = 10 * time.Second // the same for Check, which runs once
)

// certificateDelays merge the events of a renewal: a certificate and its key are often replaced
// together.
var certificateDelays = watch.Delays{Debounce: 100 * time.Millisecond, MaxDelay: time.Second}

// certificates are the files from which proxies on this host read certificates and trusted
// authorities. They are watched while run runs. A file is inspected in a goroutine of its own, so
// that a file system that hangs delays only the secrets with its files. A nil value has no files:
// the proxies are on other hosts.
type certificates struct {
	denied Denied        // nil: unknown
	agents Denied        // the same of the agent, which reads credentials
	wait   time.Duration // longest wait for inspections
	signal chan struct{} // there are changed files
	files  *watch.Notifier

	mu      sync.Mutex // guards the following fields
	byPath  map[string]*certificateFile
	changed []string // paths
}

func newCertificates(
	denied, agents Denied, wait time.Duration, log *slog.Logger,
) *certificates {
	return &certificates{denied: denied, agents: agents, wait: wait, signal: make(chan struct{}, 1),
		files: watch.NewNotifier(certificateDelays, log), byPath: map[string]*certificateFile{}}
}

// run watches the files until ctx ends, and has those inspected that may have changed.
func (c *certificates) run(ctx context.Context, log *slog.Logger) {
	if c == nil {
		return
	}
	if err := c.files.Run(ctx); err != nil {
		log.Error("cannot watch certificate files", "error", err)
	}
}

// look implements view.Inspect.
func (c *certificates) look(secrets []translate.FileSecret) []view.Held {
	found := make([]view.Held, len(secrets))
	if c == nil {
		return found
	}
	c.inspect(c.add(secrets), c.wait)
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, secret := range secrets {
		if files, ok := secret.CredentialFiles(); ok {
			found[i] = c.credential(files)
			continue
		}
		var held []byte
		for _, path := range secret.Files() {
			file := c.byPath[path]
			if file == nil {
				file = &certificateFile{inspected: true} // its path is not absolute
			}
			held = binary.BigEndian.AppendUint64(held, file.held)
			held = binary.BigEndian.AppendUint64(held, file.changes)
			switch {
			case !file.inspected:
				insert(&found[i].Unread, path)
			case file.missing:
				insert(&found[i].Missing, path)
			case file.denied != "":
				insert(&found[i].Denied, file.denied)
			}
		}
		found[i].Fingerprint = max(crc32.ChecksumIEEE(held), 1) // 0 means unknown
	}
	return found
}

// credential returns which files of a credential are missing, or denied to the agent. Callers hold
// mu.
func (c *certificates) credential(files credential.Files) (held view.Held) {
	required, because := files.Required(), ""
	if own := c.byPath[files.OwnFolder()]; own != nil && own.inspected && !own.missing {
		required = [][]string{files.Roots[:1]}
		because = " (used instead of " + files.Roots[1] + ", because its folder exists)"
	}
	for _, choice := range required {
		missing := 0
		for _, path := range choice {
			if file := c.byPath[path]; file != nil && !file.inspected {
				insert(&held.Unread, path)
			} else if file != nil && file.missing {
				missing++
			} else if file != nil && file.denied != "" {
				insert(&held.Denied, file.denied)
			}
		}
		if missing == len(choice) {
			insert(&held.Missing, choice[len(choice)-1]+because)
		}
	}
	return held
}

// insert appends a text unless it is there.
func insert(texts *[]string, text string) {
	if !slices.Contains(*texts, text) {
		*texts = append(*texts, text)
	}
}

// add adds the files of secrets, and returns the new ones.
func (c *certificates) add(secrets []translate.FileSecret) (added []*certificateFile) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, secret := range secrets {
		for _, path := range secret.Files() {
			if c.byPath[path] == nil && filepath.IsAbs(path) {
				file := &certificateFile{File: watch.File{Path: path},
					credential: secret.Credential != ""}
				file.unwatch = c.files.Watch([]string{path}, func() {
					c.mu.Lock()
					defer c.mu.Unlock()
					c.request(file)
				})
				c.byPath[path] = file
				added = append(added, file)
			}
		}
	}
	return added
}

// changes returns a channel that delivers a signal when takeChanged has paths.
func (c *certificates) changes() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.signal
}

// takeChanged returns the paths of the files that changed since the last call.
func (c *certificates) takeChanged() []string {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	paths := c.changed
	c.changed = nil
	return paths
}

// refresh inspects all files.
func (c *certificates) refresh(wait time.Duration) {
	if c == nil {
		return
	}
	c.mu.Lock()
	files := slices.Collect(maps.Values(c.byPath))
	c.mu.Unlock()
	c.inspect(files, wait)
}

// access returns why proxies cannot read a file, as last inspected.
func (c *certificates) access(path string) (missing bool, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch file := c.byPath[path]; {
	case file == nil:
		return false, ""
	case file.overdue:
		return false, path + " cannot be read: its file system does not answer"
	default:
		return file.missing, file.denied
	}
}

// among returns those of paths that are certificate files.
func (c *certificates) among(paths []string) map[string]bool {
	found := map[string]bool{}
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, path := range paths {
			if c.byPath[path] != nil {
				found[path] = true
			}
		}
	}
	return found
}

// retain drops all files except those that are used.
func (c *certificates) retain(used map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for path, file := range c.byPath {
		if !used[path] {
			file.unwatch()
			delete(c.byPath, path)
		}
	}
}

// reread updates the views whose certificate files are among changed paths, and reports whether
// such files are. Callers hold mu.
func (s *Server) reread(paths []string) bool {
	files := s.certificates.among(paths)
	if len(files) == 0 {
		return false
	}
	for _, v := range s.views {
		v.Reread(files)
	}
	return true
}

// dropCertificates drops the files that no view uses any more. Callers hold mu.
func (s *Server) dropCertificates() {
	if s.certificates == nil {
		return
	}
	used := map[string]bool{}
	for _, v := range s.views {
		v.FileSecrets(func(secret translate.FileSecret, _ []resource.Origin) {
			for _, path := range secret.Files() {
				used[path] = true
			}
		})
	}
	s.certificates.retain(used)
}
