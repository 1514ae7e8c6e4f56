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
	// inspectWait is how long the server waits for the file system of a certificate file.
	inspectWait = 100 * time.Millisecond
	// inspectWait during a reload, which fails if the file system does not respond
	reloadWait = 2 * time.Second
	checkWait  = 10 * time.Second // inspectWait in Check, which runs once
)

// certificateDelays debounce the events of a renewal, because a certificate and its key are often
// replaced together.
var certificateDelays = watch.Delays{Debounce: 100 * time.Millisecond, MaxDelay: time.Second}

// certificates watches and inspects the certificate files that proxies on this host read. Each file
// is inspected in a goroutine of its own, so that a hanging file system delays only the secrets
// that use its files. A nil value has no files: the proxies are on other hosts.
type certificates struct {
	denied ReadCheck     // reports files that proxies cannot read; nil: unknown
	agents ReadCheck     // reports files of credentials that the agent cannot read; nil: unknown
	wait   time.Duration // longest wait for the inspection of files
	signal chan struct{} // receives when there are changed files
	files  *watch.Notifier

	mu      sync.Mutex // guards byPath and changed
	byPath  map[string]*certificateFile
	changed []string // paths of certificate files that have changed
}

func newCertificates(
	denied, agents ReadCheck, wait time.Duration, log *slog.Logger,
) *certificates {
	return &certificates{denied: denied, agents: agents, wait: wait, signal: make(chan struct{}, 1),
		files: watch.NewNotifier(certificateDelays, log), byPath: map[string]*certificateFile{}}
}

// run watches the files until ctx ends, and requests the inspection of those that may have changed.
func (c *certificates) run(ctx context.Context, log *slog.Logger) {
	if c == nil {
		return
	}
	if err := c.files.Run(ctx); err != nil {
		log.Error("cannot watch certificate files", "error", err)
	}
}

// look returns the state of the files of secrets. It implements view.InspectSecrets.
func (c *certificates) look(secrets []translate.ConfiguredSecret) []view.SecretFiles {
	found := make([]view.SecretFiles, len(secrets))
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
				// the path is not absolute, so the file is not read
				file = &certificateFile{inspected: true}
			}
			held = binary.BigEndian.AppendUint64(held, file.held)
			held = binary.BigEndian.AppendUint64(held, file.changes)
			switch {
			case !file.inspected:
				insert(&found[i].NotReadYet, path)
			case file.missing:
				insert(&found[i].Missing, path)
			case file.denied != "":
				insert(&found[i].Unreadable, file.denied)
			}
		}
		// a fingerprint is never 0, which means "unknown"
		found[i].Fingerprint = max(crc32.ChecksumIEEE(held), 1)
	}
	return found
}

// credential returns which files of a credential are missing or unreadable for the agent. Callers
// hold mu.
func (c *certificates) credential(files credential.Files) (held view.SecretFiles) {
	required, because := files.RequiredAlternatives(), ""
	if own := c.byPath[files.AuthoritiesFolder()]; own != nil && own.inspected && !own.missing {
		required = [][]string{files.Roots[:1]}
		because = " (used instead of " + files.Roots[1] + ", because its folder exists)"
	}
	for _, choice := range required {
		missing := 0
		for _, path := range choice {
			if file := c.byPath[path]; file != nil && !file.inspected {
				insert(&held.NotReadYet, path)
			} else if file != nil && file.missing {
				missing++
			} else if file != nil && file.denied != "" {
				insert(&held.Unreadable, file.denied)
			}
		}
		if missing == len(choice) {
			insert(&held.Missing, choice[len(choice)-1]+because)
		}
	}
	return held
}

// insert appends a text to a list, unless the list contains it.
func insert(texts *[]string, text string) {
	if !slices.Contains(*texts, text) {
		*texts = append(*texts, text)
	}
}

// add adds the files of secrets, and returns the new ones.
func (c *certificates) add(secrets []translate.ConfiguredSecret) (added []*certificateFile) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, secret := range secrets {
		for _, path := range secret.Files() {
			if c.byPath[path] == nil && filepath.IsAbs(path) {
				file := &certificateFile{File: watch.File{Path: path},
					credential: secret.Credential != "", socket: secret.IsFromExternalSDSServer()}
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

// changes returns a channel that receives when takeChanged has paths.
func (c *certificates) changes() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.signal
}

// takeChanged returns the paths of the files that changed since its last call.
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

// refresh inspects all certificate files again.
func (c *certificates) refresh(wait time.Duration) {
	if c == nil {
		return
	}
	c.mu.Lock()
	files := slices.Collect(maps.Values(c.byPath))
	c.mu.Unlock()
	c.inspect(files, wait)
}

// access returns whether a file is missing, and why proxies cannot read it, according to the last
// inspection.
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

// among returns those paths that are certificate files.
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

// retain drops all files except those in used.
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

// reread updates the views that use certificate files among the changed paths. It reports whether
// there are such files. Callers hold mu.
func (s *Server) reread(paths []string) bool {
	files := s.certificates.among(paths)
	if len(files) == 0 {
		return false
	}
	for _, v := range s.views {
		v.RereadSecrets(files)
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
		v.ConfiguredSecrets(func(secret translate.ConfiguredSecret, _ []resource.Origin) {
			for _, path := range secret.Files() {
				used[path] = true
			}
		})
	}
	s.certificates.retain(used)
}
