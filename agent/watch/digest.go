package watch

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
)

// DigestFiles returns a SHA-256 checksum, in hexadecimal, of the names, existence and content of
// all paths. paths are files or directories as in Watcher.SetPaths; suffixes are those of Options.
// The order of the paths and repetitions do not matter. A missing file is part of the digest; a
// file that cannot be read is an error.
func DigestFiles(paths []string, suffixes ...string) (string, error) {
	all, err := readAll(paths, suffixes)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	var failed []error
	for _, e := range all {
		if e.current.kind == unreadable {
			err := fmt.Errorf("cannot compute the digest of %s: unreadable or not a regular file",
				e.name)
			failed = append(failed, err)
		}
		_, _ = fmt.Fprintf(hash, "%d:%s %d %x\n", len(e.name), e.name, e.current.kind, e.current.sum)
	}
	return hex.EncodeToString(hash.Sum(nil)), errors.Join(failed...)
}

// readAll reads paths, which have the form that Watcher.SetPaths accepts, and returns their entries
// by name.
func readAll(paths, suffixes []string) (all []*entry, err error) {
	tree := newTree(suffixes, slog.New(slog.DiscardHandler))
	roots, err := tree.set(paths)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(roots, func(a, b *root) int { return cmp.Compare(a.key, b.key) })
	for _, r := range roots {
		j := r.begin()
		tree.apply(j, j.run(tree.folders, false))
		for _, name := range slices.Sorted(maps.Keys(r.entries)) {
			all = append(all, r.entries[name])
		}
	}
	return all, nil
}
