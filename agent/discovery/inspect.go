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

// ReadCheck returns why a process cannot read a file, and the fix: "user envoy cannot read /x:
// chmod 644 /x". It returns "" if the process can read the file, or if that is unknown. It may
// block.
type ReadCheck func(path string) (problem string)

// of calls d. It returns "" if d is nil.
func (d ReadCheck) of(path string) string {
	if d == nil {
		return ""
	}
	return d(path)
}

// reach reports whether a certificate file is missing. If the file exists, why says why its reader
// cannot read it. The reader is the agent for a credential's file, else the proxy. Envoy watches
// the folder of a file that it reads, so why also says if the proxy cannot list the folder. For a
// socket, why says why the proxy cannot connect to it.
func (c *certificates) reach(file *certificateFile) (missing bool, why string) {
	info, err := os.Stat(file.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, ""
	case file.socket && err == nil && info.Mode().Type() != fs.ModeSocket:
		return false, file.Path + " is no socket; correct [identity] credentials_sds"
	case file.socket:
		return false, c.denied.of(file.Path)
	case file.credential:
		return false, c.agents.of(file.Path)
	}
	return false, cmp.Or(c.denied.of(file.Path), c.denied.of(filepath.Dir(file.Path)))
}

// certificateFile is a certificate file, with the result of its last inspection.
type certificateFile struct {
	watch.File      // used only by the goroutine that inspects the file
	credential bool // the agent reads the file; proxies do not
	socket     bool // socket of an SDS server on this host, to which proxies connect
	unwatch    func()

	// Fields guarded by certificates.mu:
	busy    bool          // a goroutine is inspecting the file
	next    chan struct{} // closed at the end of the next inspection; nil: none is requested
	overdue bool          // the file system did not answer in time

	inspected bool
	missing   bool
	denied    string // why the reader cannot read the file, with the fix; "": it can
	held      uint64 // hash of the file's content
	// changes counts the changes of the content. It is part of the fingerprint: if content changes
	// and is then restored, Envoy must read the file again, because it refused the version between.
	changes uint64
}

// inspect inspects files, and returns when all inspections have ended or the wait is over. A file
// whose inspection ends later counts as changed. inspect does not wait for overdue files.
func (c *certificates) inspect(files []*certificateFile, wait time.Duration) {
	pending := map[*certificateFile]<-chan struct{}{}
	c.mu.Lock()
	for _, file := range files {
		if !file.overdue {
			pending[file] = c.request(file)
		}
	}
	c.mu.Unlock()
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	for _, done := range pending {
		select {
		case <-done:
			continue
		case <-deadline.C:
		}
		c.mu.Lock()
		for file, done := range pending {
			select {
			case <-done:
			default:
				file.overdue = true
			}
		}
		c.mu.Unlock()
		return
	}
}

// request schedules an inspection of the file after the one in progress, if any. The returned
// channel is closed when the scheduled inspection completes. Callers hold mu.
func (c *certificates) request(file *certificateFile) <-chan struct{} {
	if file.next == nil {
		file.next = make(chan struct{})
	}
	done := file.next
	if !file.busy {
		file.busy = true
		go c.serve(file)
	}
	return done
}

// serve inspects a file, and repeats that while further inspections are requested.
func (c *certificates) serve(file *certificateFile) {
	for {
		c.mu.Lock()
		done := file.next
		file.next, file.busy = nil, done != nil
		c.mu.Unlock()
		if done == nil {
			return
		}
		held := file.Fingerprint()
		missing, denied := c.reach(file)
		c.mu.Lock()
		c.record(file, held, missing, denied)
		close(done)
		c.mu.Unlock()
	}
}

// record stores the result of an inspection. Callers hold mu.
func (c *certificates) record(file *certificateFile, held uint64, missing bool, denied string) {
	first := !file.inspected
	// A file that has become readable counts as changed even if its content is the same: Envoy must
	// read it again.
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
		default: // the channel has a signal already
		}
	}
	file.overdue = false
}
