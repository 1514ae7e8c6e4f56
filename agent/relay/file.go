package relay

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"outrider.org/outrider/agent/recordfile"
	xdsresource "outrider.org/outrider/agent/resource"
)

// Kinds of records in the cache file. Each node has a record with its identity and time, then a
// record for each type with a DeltaDiscoveryResponse.
const (
	fileHeader   = "outrider-xds-cache 1\n"
	nodeRecord   = 'n'
	typeRecord   = 't'
	maxFileBytes = 128 << 20
)

var fileFormat = recordfile.Format{Header: fileHeader, MaxBytes: maxFileBytes}

// fit returns the longest prefix of nodes whose size does not exceed most bytes, but at least one
// node. If the first node alone is too large, fit returns it without its largest extension
// configurations, which may contain Wasm modules. without is the number of extension configurations
// that it left out.
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

const recordOverhead = 64 // upper bound in bytes for each record of a node, type or resource

// size returns an upper bound of the snapshot's size in the file, in bytes.
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

// writeFile atomically replaces the cache file.
func writeFile(path string, nodes []*snapshot) error {
	err := fileFormat.Write(path, func(yield func(recordfile.Record) bool) {
		for _, node := range nodes {
			head := string(node.identity) + " " + node.saved.UTC().Format(time.RFC3339Nano)
			if !yield(recordfile.Record{Kind: nodeRecord, Text: []byte(head)}) {
				return
			}
			for typeURL, of := range node.types {
				r := &response{typeURL: typeURL, version: of.version, stored: true}
				for _, one := range of.resources {
					r.resources = append(r.resources, one)
				}
				if !yield(recordfile.Record{Kind: typeRecord, Text: r.encode(true)}) {
					return
				}
			}
		}
	})
	if err != nil {
		return fmt.Errorf("write the cache of accepted resources: %w", err)
	}
	return nil
}

// readFile returns the nodes in a cache file; none if the file does not exist.
func readFile(path string) ([]*snapshot, error) {
	records, err := fileFormat.Read(path)
	if err != nil {
		return nil, fmt.Errorf("read the cache of accepted resources: %w", err)
	}
	nodes, err := decodeNodes(records)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return nodes, nil
}

func decodeNodes(records []recordfile.Record) ([]*snapshot, error) {
	var nodes []*snapshot
	for _, record := range records {
		switch {
		case record.Kind == nodeRecord:
			id, at, _ := bytes.Cut(record.Text, []byte(" "))
			saved, err := time.Parse(time.RFC3339Nano, string(at))
			if err != nil {
				return nil, errors.New("the record of a node has no valid time of its last update")
			}
			nodes = append(nodes, &snapshot{identity: identity(id), saved: saved,
				types: map[string]accepted{}})
		case record.Kind == typeRecord && len(nodes) > 0:
			r, err := parseResponse(record.Text, true, true)
			if err != nil {
				return nil, err
			}
			known := accepted{r.version, map[string]resource{}}
			for _, one := range r.resources {
				known.resources[one.name] = one
			}
			nodes[len(nodes)-1].types[r.typeURL] = known
		default:
			return nil, errors.New("the cache has an invalid record")
		}
	}
	return nodes, nil
}
