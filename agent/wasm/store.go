package wasm

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/recordfile"
)

// format is the format of FetcherOptions.File. For each module it has two records: the Source, and
// then the code.
var format = recordfile.Format{Header: "outrider wasm modules 1\n", MaxBytes: maxTotal + 1<<20}

const (
	recordSource = 's'
	recordModule = 'm'

	pauseFailed = 5 * time.Second // pause after a failed attempt to write the file
)

// restore reads the stored modules. Modules that come from files will be read again.
func (f *Fetcher) restore() {
	if f.options.File == "" {
		return
	}
	records, err := format.Read(f.options.File)
	if err != nil {
		f.options.Logger.Warn("cannot read stored Wasm modules", "error", err)
		return
	}
	var from Source
	for _, r := range records {
		switch r.Kind {
		case recordSource:
			from = Source{}
			if json.Unmarshal(r.Text, &from) != nil {
				from = Source{}
			}
		case recordModule:
			if from.URL == "" || !(Module{Code: r.Text}).IsWasm() || len(f.entries) >= maxSources {
				continue
			}
			e := newEntry()
			e.code = slices.Clone(r.Text)
			if from.path() == "" {
				e.due = time.Now().Add(idle * 24 * 365)
			}
			f.entries[from] = e
		}
	}
}

// store writes the file if it is outdated and no fetch is running. It returns the time until it
// should be called again.
func (f *Fetcher) store() time.Duration {
	f.mu.Lock()
	outdated := f.outdated
	f.mu.Unlock()
	if f.options.File == "" || !outdated || f.running > 0 {
		return idle
	}
	if wait := time.Until(f.failed.Add(pauseFailed)); wait > 0 && !f.failed.IsZero() {
		return wait
	}
	records := f.records()
	if err := format.Write(f.options.File, slices.Values(records)); err != nil {
		f.failed = time.Now()
		f.mu.Lock()
		f.outdated = true
		f.mu.Unlock()
		f.options.Conditions.Raise(ConditionNotStored, condition.Warning,
			"cannot store the Wasm modules for "+
				"the next start of the agent: "+err.Error()+"; free the disk or correct its rights")
		return pauseFailed
	}
	f.failed = time.Time{}
	f.options.Conditions.Clear(ConditionNotStored)
	return idle
}

// records returns the content of the file to write, and marks the file as no longer outdated.
func (f *Fetcher) records() (all []recordfile.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.outdated = false
	for _, from := range slices.SortedFunc(maps.Keys(f.entries), compareSources) {
		text, err := json.Marshal(from)
		// err is always nil: a Source has only strings
		if code := f.entries[from].code; err == nil && code != nil {
			all = append(all, recordfile.Record{Kind: recordSource, Text: text},
				recordfile.Record{Kind: recordModule, Text: code})
		}
	}
	return all
}
