package watch

import "os"

// job is one examination of a root, a path of SetPaths. It scans the root, or only reads the files
// that were written. It runs in a goroutine of its own without holding the Watcher's lock, because
// a file system may not respond.
type job struct {
	root    *root
	scan    bool
	access  bool // count all files as changed, with Options.ReportWithoutReading
	written []*entry
	done    chan struct{}
	late    bool // no caller waits for the job any more
}

// result is what a job found.
type result struct {
	scan scan // set only if the job scanned the root
	read map[*entry]reading
}

// reading is the content of an entry as a job read it.
type reading struct {
	path    string
	content content
	stamp   stamp
	// the file has several names, so it is watched itself: changes through another name are not
	// events of its folder
	linked bool
	polled bool // inotify cannot watch the file
}

// begin creates the next job of a root, a path of SetPaths. The caller must hold the lock of the
// Watcher.
func (r *root) begin() *job {
	j := &job{root: r, scan: r.stale, access: r.access, done: make(chan struct{})}
	for e := range r.written {
		j.written = append(j.written, e)
	}
	r.job, r.stale, r.access = j, false, false
	clear(r.written)
	return j
}

// run executes the job.
func (j *job) run(f *folders, unread bool) result {
	found := result{scan: j.root.scan, read: map[*entry]reading{}}
	paths := map[*entry]string{}
	if j.scan {
		found.scan = scanRoot(j.root, f)
		paths = j.root.paths(found.scan)
	}
	for _, e := range j.written {
		if !j.scan {
			paths[e] = e.path
		}
	}
	for e, path := range paths {
		found.read[e] = j.read(e, path, found.scan, f, unread)
	}
	return found
}

// paths returns the current path of each entry. It includes entries that a scan has found for the
// first time; the path of an entry that the scan has not found again is "".
func (r *root) paths(found scan) map[*entry]string {
	paths := map[*entry]string{}
	for _, e := range r.entries {
		paths[e] = ""
	}
	add := func(name, path string) {
		e := r.entries[name]
		if e == nil {
			e = &entry{root: r, name: name}
		}
		paths[e] = path
	}
	files := map[string]string{r.name: found.end}
	for path, names := range found.files {
		for _, name := range names {
			files[name] = path
		}
	}
	for name, path := range files {
		add(name, path)
	}
	return paths
}

// read reads the content of an entry.
func (j *job) read(e *entry, path string, s scan, f *folders, unread bool) reading {
	at, before := reading{path: path}, e.current
	if j.access && unread {
		before.looks++
	}
	switch {
	case path == "" && s.denied && e.name == j.root.name:
		at.content.kind = unreadable
		if unread {
			at.content.looks = before.looks + 1
		}
	case path == "":
	case s.nodes[path].listed:
		at.content = content{kind: directory, looks: before.looks}
	default:
		info, err := os.Lstat(path)
		if err == nil && hardLinks(info) > 1 {
			at.linked, at.polled = true, !f.watch(path, true)
		}
		at.content, at.stamp = readContent(path, before, e.stamp, unread)
	}
	return at
}

// apply stores the result of a job. The caller must hold the lock of the Watcher.
func (t *tree) apply(j *job, found result) {
	r := j.root
	if r.job = nil; j.scan {
		r.scan = found.scan
	}
	for e, at := range found.read {
		if at.path != "" && at.content.kind != directory &&
			(at.stamp != e.stamp || e.stamp == (stamp{})) {
			t.reads++
		}
		before := e.current
		e.path, e.current, e.stamp = at.path, at.content, at.stamp
		switch r.entries[e.name] = e; {
		case r.baseline:
			t.changed = t.changed || e.current != before
		case j.late:
			e.reported, t.changed = content{kind: unknown}, true
		default:
			e.reported = e.current
		}
		if at.linked {
			r.nodes[at.path] = node{watched: true}
			r.polled = r.polled || at.polled
		}
		if t.roots[r.key] != r {
			continue // SetPaths has removed the path since the job began
		}
		if t.compare(e); e.path == "" && e.name != r.name && e.current == e.reported {
			delete(r.entries, e.name)
		}
	}
	r.baseline = true
	t.sweep()
}
