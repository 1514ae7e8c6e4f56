package jwks

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/condition"
)

// maxReported is the number of key sets that the sentence of ConditionUnavailable names.
const maxReported = 5

// report raises or clears ConditionUnavailable.
func (f *Fetcher) report() {
	f.mu.Lock()
	severity := condition.Warning
	var failed []string
	for _, from := range slices.SortedFunc(maps.Keys(f.entries), compareSources) {
		e := f.entries[from]
		if !e.required || e.err == nil {
			continue
		}
		effect := "the keys of " + e.fetched.UTC().Format(time.RFC3339) + " remain in use"
		if e.text == "" {
			severity, effect = condition.Error, "all tokens that need it are refused"
		}
		failed = append(failed, fmt.Sprintf("cannot fetch the key set of %s: %v; %s",
			from.redacted(), e.err, effect))
	}
	for _, from := range f.omitted {
		severity = condition.Error
		failed = append(failed, fmt.Sprintf("the key set of %s is not fetched, as there are more "+
			"than %d: all tokens that need it are refused", from.redacted(), maxSources))
	}
	f.mu.Unlock()
	if len(failed) == 0 {
		f.options.Conditions.Clear(ConditionUnavailable)
		return
	}
	if more := len(failed) - maxReported; more > 0 {
		failed = append(failed[:maxReported], fmt.Sprintf("%d more", more))
	}
	f.options.Conditions.Raise(ConditionUnavailable, severity, strings.Join(failed, "; ")+
		"; check its server, or correct jwksUri or issuer in the RequestAuthentication")
}
