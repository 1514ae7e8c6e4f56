package relay

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/renameio/v2"

	"outrider.org/outrider/agent/readfile"
	xdsresource "outrider.org/outrider/agent/resource"
)

// The file is fileHeader, records with their length before them, and the SHA-256 of all that. A
// node is a record of its identity and time, then a record for each type with a
// DeltaDiscoveryResponse. The first byte of a record is its kind.
const (
	fileHeader   = "outrider-xds-cache 1\n"
	nodeRecord   = 'n'
	typeRecord   = 't'
	maxFileBytes = 128 << 20
)

// fit leaves out what exceeds a size in bytes: all nodes but the first, then its largest extension
// configurations, which may have Wasm modules. It returns how many of the latter.
func fit(nodes []*snapshot, most int) (fitting []*snapshot, without int) {
	if len(nodes) == 0 {
		return nil, 0
	}
	total := nodes[0].size()
	for fitting = nodes[:1]; len(fitting) < len(nodes); fitting = nodes[:len(fitting)+1] {
		if total += nodes[len(fitting)].size(); total > most {
			break
		}
	}
	first, all := *nodes[0], nodes[0].types[xdsresource.ExtensionType]
	total = first.size()
	if total <= most || len(all.resources) == 0 {
		return fitting, 0
	}
	held := maps.Clone(all.resources)
	for _, one := range slices.SortedFunc(maps.Values(held), func(a, b resource) int {
		return len(b.body) - len(a.body)
	}) {
		if total > most {
			delete(held, one.name)
			total -= one.size()
		}
	}
	first.types = maps.Clone(first.types)
	first.types[xdsresource.ExtensionType] = accepted{all.version, held}
	return []*snapshot{&first}, len(all.resources) - len(held)
}

const recordOverhead = 64 // at most, of a node, type or resource

// size returns at least the size in the file.
func (n *snapshot) size() int {
	total := recordOverhead + len(n.identity)
	for typeURL, of := range n.types {
		total += recordOverhead + len(typeURL) + len(of.version)
		for _, one := range of.resources {
			total += one.size()
		}
	}
	return total
}

func (r resource) size() int {
	return recordOverhead + len(r.name) + len(r.version) + len(r.body) + len(r.source)
}

// writeFile replaces the file atomically.
func writeFile(path string, nodes []*snapshot) (err error) {
	file, err := renameio.NewPendingFile(path, renameio.WithPermissions(0o600),
		renameio.WithTempDir(filepath.Dir(path)))
	if err != nil {
		return fmt.Errorf("create the cache: %w", err)
	}
	defer func() { err = errors.Join(err, file.Cleanup()) }()
	sum := sha256.New()
	out := io.MultiWriter(file, sum)
	total := len(fileHeader)
	record := func(kind byte, text []byte) error {
		head := append(binary.AppendUvarint(nil, uint64(len(text)+1)), kind)
		if total += len(head) + len(text); total > maxFileBytes {
			return fmt.Errorf("write the cache: it has more than %d MB", maxFileBytes>>20)
		}
		for _, part := range [][]byte{head, text} {
			if _, err := out.Write(part); err != nil {
				return fmt.Errorf("write the cache: %w", err)
			}
		}
		return nil
	}
	if _, err := io.WriteString(out, fileHeader); err != nil {
		return fmt.Errorf("write the cache: %w", err)
	}
	for _, node := range nodes {
		if err := record(nodeRecord, []byte(string(node.identity)+" "+
			node.saved.UTC().Format(time.RFC3339Nano))); err != nil {
			return err
		}
		for typeURL, of := range node.types {
			r := &response{typeURL: typeURL, version: of.version, stored: true}
			for _, one := range of.resources {
				r.resources = append(r.resources, one)
			}
			if err := record(typeRecord, r.encode(true)); err != nil {
				return err
			}
		}
	}
	if _, err := file.Write(sum.Sum(nil)); err != nil {
		return fmt.Errorf("write the cache: %w", err)
	}
	if err := file.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("replace the cache: %w", err)
	}
	return nil
}

// readFile returns the nodes of a file; none if there is no file.
func readFile(path string) ([]*snapshot, error) {
	file, err := readfile.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the cache: %w", err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("read the cache: %w", err)
	}
	if info.Size() > maxFileBytes+sha256.Size {
		return nil, fmt.Errorf("%s: it has more than %d MB", path, maxFileBytes>>20)
	}
	text := make([]byte, info.Size()) // io.ReadAll needs up to twice as much
	if _, err := io.ReadFull(file, text); err != nil {
		return nil, fmt.Errorf("read the cache: %w", err)
	}
	nodes, err := decodeFile(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return nodes, nil
}

func decodeFile(text []byte) ([]*snapshot, error) {
	body, ok := bytes.CutPrefix(text, []byte(fileHeader))
	if !ok {
		return nil, errors.New("not a cache of this version")
	}
	end := len(text) - sha256.Size
	if end < len(fileHeader) {
		return nil, errors.New("it is truncated")
	}
	if sum := sha256.Sum256(text[:end]); !bytes.Equal(sum[:], text[end:]) {
		return nil, errors.New("its checksum is wrong")
	}
	body = body[:len(body)-sha256.Size]
	var nodes []*snapshot
	for len(body) > 0 {
		length, n := binary.Uvarint(body)
		if n <= 0 || length == 0 || length > uint64(len(body)-n) {
			return nil, errors.New("a record has the wrong length")
		}
		kind, record := body[n], body[n+1:n+int(length)]
		body = body[n+int(length):]
		switch {
		case kind == nodeRecord:
			id, at, _ := bytes.Cut(record, []byte(" "))
			saved, err := time.Parse(time.RFC3339Nano, string(at))
			if err != nil {
				return nil, errors.New("a node has no time")
			}
			nodes = append(nodes, &snapshot{identity: identity(id), saved: saved,
				types: map[string]accepted{}})
		case kind == typeRecord && len(nodes) > 0:
			r, err := parseResponse(record, true, true)
			if err != nil {
				return nil, err
			}
			known := accepted{r.version, map[string]resource{}}
			for _, one := range r.resources {
				known.resources[one.name] = one
			}
			nodes[len(nodes)-1].types[r.typeURL] = known
		default:
			return nil, errors.New("a record is not valid")
		}
	}
	return nodes, nil
}
