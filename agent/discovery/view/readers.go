package view

import "maps"

// readers records, in both directions, which hosts the translation of each host reads.
type readers struct {
	byRead   map[string]map[string]struct{}
	byReader map[string]map[string]struct{}
}

func newReaders() readers {
	return readers{byRead: map[string]map[string]struct{}{},
		byReader: map[string]map[string]struct{}{}}
}

// set replaces the hosts that the translation of reader reads.
func (r readers) set(reader string, reads map[string]struct{}) {
	before := r.byReader[reader]
	if maps.Equal(before, reads) {
		return
	}
	for read := range before {
		if _, still := reads[read]; !still {
			delete(r.byRead[read], reader)
			if len(r.byRead[read]) == 0 {
				delete(r.byRead, read)
			}
		}
	}
	for read := range reads {
		if r.byRead[read] == nil {
			r.byRead[read] = map[string]struct{}{}
		}
		r.byRead[read][reader] = struct{}{}
	}
	if len(reads) == 0 {
		delete(r.byReader, reader)
	} else {
		r.byReader[reader] = reads
	}
}

// of returns the hosts whose translation reads a host. Callers must not modify the map.
func (r readers) of(read string) map[string]struct{} { return r.byRead[read] }
