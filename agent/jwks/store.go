package jwks

import (
	"encoding/json"
	"iter"
	"slices"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/recordfile"
)

// format is the format of Options.File. The key sets have up to maxTotal bytes, and JSON may escape
// a byte as six.
var format = recordfile.Format{Header: "outrider key sets 1\n", MaxBytes: 6*maxTotal + 1<<20}

const (
	recordKeySet = 'k'
	// Pauses between two writes of the file: if a key set has changed, if only times of fetches
	// have, and after a write that failed.
	pauseChanged = 100 * time.Millisecond
	pauseFetched = time.Minute
	pauseFailed  = 5 * time.Second
)

// stored is the JSON form of a key set in the file.
type stored struct {
	URI     string    `json:"uri,omitempty"`
	Issuer  string    `json:"issuer,omitempty"`
	Fetched time.Time `json:"fetched"`
	Text    string    `json:"text"`
}

// restore reads the key sets in the file.
func (f *Fetcher) restore() {
	if f.options.File == "" {
		return
	}
	records, err := format.Read(f.options.File)
	if err != nil {
		f.options.Logger.Warn("cannot read stored JWT key sets", "error", err)
		return
	}
	for _, r := range records {
		var s stored
		if r.Kind != recordKeySet || json.Unmarshal(r.Text, &s) != nil ||
			checkFetched([]byte(s.Text)) != nil || len(f.entries) >= maxSources {
			continue
		}
		e := f.newEntry()
		e.text, e.fetched = s.Text, s.Fetched
		f.entries[Source{URI: s.URI, Issuer: s.Issuer}] = e
	}
}

// store writes the file if it is outdated and the pause since the last write is over. It returns
// the time until it should be called again.
func (f *Fetcher) store() time.Duration {
	if f.options.File == "" || !f.outdated && !f.changedKeys {
		return unusedFor
	}
	pause := pauseFetched
	if f.changedKeys {
		pause = pauseChanged
	}
	if f.storeFailed {
		pause = pauseFailed
	}
	if wait := time.Until(f.written.Add(pause)); wait > 0 {
		return wait
	}
	f.write()
	return 0
}

func (f *Fetcher) write() {
	f.written = time.Now()
	err := format.Write(f.options.File, f.records())
	if f.storeFailed = err != nil; err != nil {
		f.options.Conditions.Raise(ConditionNotStored, condition.Warning,
			"cannot store the key sets for "+
				"the next start of the agent: "+err.Error()+"; free the disk or correct its rights")
		return
	}
	f.outdated, f.changedKeys = false, false
	f.options.Conditions.Clear(ConditionNotStored)
}

// records returns the records to write into the file.
func (f *Fetcher) records() iter.Seq[recordfile.Record] {
	f.mu.Lock()
	var all []recordfile.Record
	for from, e := range f.entries {
		if e.text == "" {
			continue
		}
		text, err := json.Marshal(stored{from.URI, from.Issuer, e.fetched, e.text})
		if err == nil { // always true: strings and a time can be encoded
			all = append(all, recordfile.Record{Kind: recordKeySet, Text: text})
		}
	}
	f.mu.Unlock()
	return slices.Values(all)
}
