package config

import "testing"

// A capability that becomes available enables its own keys and no others.
func TestCapabilitiesLiftOneByOne(t *testing.T) {
	c := defaults()
	c.Capture.DNS = true
	c.DNS.Resolved = true
	refused := func(missing map[capability]bool) map[string]capability {
		all := map[string]capability{}
		for _, t := range tables(c) {
			for _, k := range t.keys {
				if c := k.unavailable(missing); c != "" {
					all[t.name+"."+k.name] = c
				}
			}
		}
		return all
	}
	if got := refused(nil); len(got) > 0 {
		t.Errorf("nothing is missing, but refused are %v", got)
	}
	if got := refused(missing()); len(got) != 1 {
		t.Errorf("refused are %v", got)
	}
	got := refused(map[capability]bool{resolvedRouting: true})
	if len(got) != 1 || got["dns.resolved"] != resolvedRouting {
		t.Errorf("only routing is missing, but refused are %v", got)
	}
}

// Every missing capability is required by some key; otherwise it has no effect.
func TestMissingCapabilitiesAreAskedFor(t *testing.T) {
	asked := map[capability]bool{}
	for _, t := range tables(defaults()) {
		for _, k := range t.keys {
			asked[k.capability] = true
		}
	}
	for c := range missing() {
		if !asked[c] {
			t.Errorf("no key needs %s", c)
		}
	}
}
