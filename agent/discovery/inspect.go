package discovery

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"outrider.org/outrider/agent/watch"
)

// Denied returns why proxies cannot read a file, and the fix: "user envoy cannot read /x: chmod
// 644 /x". It returns "" if they can read it, or if that is unknown. It may block.
type Denied func(path string) string

// of returns "" if d is nil.
func (d Denied) of(path string) string {
	if d == nil {
		return ""
	}
	return d(path)
}

// reach reports whether a file is missing, and otherwise why its reader is denied it, or denied the
// list of its folder, which Envoy watches.
func (c *certificates) reach(file *certificateFile) (missing bool, why string) {
	if _, err := os.Stat(file.Path); errors.Is(err, fs.ErrNotExist) {
		return true, ""
	}
	if file.credential {
		return false, c.agents.of(file.Path)
	}
	return false, cmp.Or(c.denied.of(file.Path), c.denied.of(filepath.Dir(file.Path)))
}

// certificateFile is a followed file with the result of its last inspection.
type certificateFile struct {
	watch.File                    // of the goroutine
	credential bool               // proxies do not read it themselves
	requests   chan chan struct{} // to inspect the file; each is closed afterwards
	end        chan struct{}      // closed to end the goroutine

	// Guarded by certificates.mu; only the goroutine writes the results.
	requested chan struct{} // the last request
	overdue   bool          // the file system has not answered in time
	inspected bool
	missing   bool
	denied    string // why the proxy cannot read it, and the fix; "" if it can
	held      uint64 // its fingerprint
	// changes counts the changes of held. Restored content must differ from its first version, as
	// Envoy must read it again after it refused the version in between.
	changes uint64
}

// inspect inspects files and returns once that is done, or after the longest wait. Files that are
// done later count as changed. It does not wait for files that are overdue already.
func (c *certificates) inspect(files []*certificateFile, wait time.Duration) {
	var pending []*certificateFile
	var all []chan struct{}
	c.mu.Lock()
	for _, file := range files {
		if file.overdue {
			continue
		}
		done := make(chan struct{})
		select {
		case file.requests <- done:
			file.requested = done
		default:
			done = file.requested // another caller's, whose inspection has not begun
		}
		pending, all = append(pending, file), append(all, done)
	}
	c.mu.Unlock()
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	for _, done := range all {
		select {
		case <-done:
			continue
		case <-deadline.C:
		}
		c.mu.Lock()
		for i, file := range pending {
			select {
			case <-all[i]:
			default:
				file.overdue = true
			}
		}
		c.mu.Unlock()
		return
	}
}

// run inspects a file on request and at each interval, at the same time as the other files: a
// certificate and its key are often replaced together.
func (c *certificates) run(file *certificateFile) {
	for {
		var done chan struct{}
		select {
		case <-file.end:
			return
		case done = <-file.requests:
		case <-time.After(inspectInterval - time.Duration(time.Now().UnixNano())%inspectInterval):
		}
		held := file.Fingerprint()
		if done == nil && held == file.held && file.denied == "" {
			continue
		}
		missing, denied := c.reach(file)
		c.mu.Lock()
		first := !file.inspected
		// Envoy reads the file again once it may, though only its folder has changed.
		differs := held != file.held || denied != file.denied
		file.missing, file.denied, file.inspected = missing, denied, true
		if differs {
			file.held = held
			file.changes++
		}
		if file.overdue || differs && !first {
			c.changed = append(c.changed, file.Path)
			select {
			case c.signal <- struct{}{}:
			default: // a signal is pending
			}
		}
		file.overdue = false
		if done != nil {
			close(done)
		}
		c.mu.Unlock()
	}
}
