package watch

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
)

// Digest is the SHA-256, in hexadecimal, over the names, the existence and the content of all paths, which are files
// or directories as Set takes them; suffixes are those of Options. It is the same in whatever order, and however often,
// the paths are given. A file that is not there is part of the digest, one that cannot be read an error.
func Digest(paths []string, suffixes ...string) (string, error) {
	all, err := readAll(paths, suffixes, false)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	var failed []error
	for _, n := range all {
		if n.now.kind == unreadable {
			failed = append(failed, fmt.Errorf("digest of %s: it cannot be read, or is not a regular file", n.name))
		}
		fmt.Fprintf(hash, "%d:%s %d %x\n", len(n.name), n.name, n.now.kind, n.now.sum)
	}
	return hex.EncodeToString(hash.Sum(nil)), errors.Join(failed...)
}

// Fingerprint is 64 bits that change when what the file at path holds does, its mode or owner, or when it comes or goes. A file that cannot be
// read, as a key of another user's may be, or is larger than 1 MiB counts by what the kernel says of it: its number, size and time of change.
func Fingerprint(path string) (uint64, error) {
	all, err := readAll([]string{path}, nil, true)
	if err != nil {
		return 0, err
	}
	hash := sha256.New()
	for _, n := range all {
		s := n.now.stamp
		fmt.Fprintf(hash, "%d %x %v %d %d %d %d.%d\n", n.now.kind, n.now.sum, n.now.access, s.device, s.inode, s.size, s.changed.Sec, s.changed.Nsec)
	}
	return binary.BigEndian.Uint64(hash.Sum(nil)), nil
}

// readAll reads paths, as Set takes them, and returns their nodes by name.
func readAll(paths, suffixes []string, withAccess bool) (all []*node, err error) {
	tree := newTree(suffixes, slog.New(slog.DiscardHandler))
	tree.access = withAccess
	if err := tree.set(paths); err != nil {
		return nil, err
	}
	for _, path := range slices.Sorted(maps.Keys(tree.roots)) {
		all = tree.roots[path].below(all)
	}
	return all, nil
}

// below appends n and the nodes below it, by name.
func (n *node) below(all []*node) []*node {
	all = append(all, n)
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		all = n.children[name].below(all)
	}
	return all
}
