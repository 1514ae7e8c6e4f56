package xds

import (
	"cmp"
	"slices"
	"strings"
	"time"

	statusv3 "google.golang.org/genproto/googleapis/rpc/status"

	"outrider.org/outrider/agent/resource"
)

// Refusal is the client's refusal (NACK) of resources.
//
// Versions has the refused version of each resource, "" if unknown. Kept has the version that the
// client keeps, "" if none; nil if the refusal may be about some of the resources only.
type Refusal struct {
	Type      string            `json:"type"`    // type URL
	Nonce     string            `json:"nonce"`   // of the response
	Version   string            `json:"version"` // of the response
	Error     string            `json:"error"`   // of the client, at most 4 KiB
	Resources []string          `json:"resources"`
	Versions  []string          `json:"versions"`
	Kept      []string          `json:"kept"`
	Origins   []resource.Origin `json:"origins"` // the objects those resources came from
}

// refused is a resource that the client refused. It is not sent again until its content changes, or
// the secrets that it may have been refused for.
type refused struct {
	resource *resource.Resource
	held     *resource.Resource // what the client has instead; nil: nothing
	message  string
	since    time.Time
	again    bool // send it once more
}

// has reports whether a resource is the refused one, and is not to be sent again.
func (r *refused) has(one *resource.Resource) bool {
	return r != nil && !r.again && one != nil && same(r.resource, one)
}

// target returns what the client should have under a name: now, the snapshot's, or what it holds if
// it refused exactly that.
func (w *watch) target(name string, held, now *resource.Resource) *resource.Resource {
	if w.refused[name].has(now) {
		return held
	}
	return now
}

// trial finds the resources that a client refuses where its error does not name them: the suspects
// are sent in halves until those to blame are alone, and the others get through.
type trial struct {
	groups []map[string]struct{} // of suspects, the one on trial last
	rounds int

	// Until someone is found to blame: a client may refuse a resource only the first time (Envoy
	// compares a secret with the one it refused, and takes the same again without a look).
	charge *Refusal
}

// maxRounds bounds a trial: enough to find three among thousands. What is suspect after that is
// refused together.
const maxRounds = 64

// clipLength bounds the client's error message, in bytes.
const clipLength = 4096

func (t *trial) has(name string) bool {
	_, on := t.groups[len(t.groups)-1][name]
	return on
}

// pass ends the trial of the last group, and the trial with the last one. It returns the charge if
// all were let go.
func (t *trial) pass(w *watch) *Refusal {
	t.groups = t.groups[:len(t.groups)-1]
	if len(t.groups) > 0 {
		return nil
	}
	w.trial = nil
	return t.charge
}

func (t *trial) split(names []string) {
	slices.Sort(names)
	for _, half := range [][]string{names[len(names)/2:], names[:len(names)/2]} {
		group := make(map[string]struct{}, len(half))
		for _, name := range half {
			group[name] = struct{}{}
		}
		t.groups = append(t.groups, group)
	}
}

// settle takes in the client's word on a response.
func (s *session) settle(w *watch, r *response, refusal *statusv3.Status) {
	if r == w.inflight {
		w.inflight = nil
	}
	onTrial := w.trial != nil && r.trial == w.trial
	if refusal == nil {
		w.versionAccepted, w.lastAccepted = r.version, time.Now()
		for _, one := range r.resources {
			one.Accept()
		}
		s.report.accepted(r)
		cured := w.cured(r)
		s.tellCured(w, cured)
		if w.typeURL == resource.SecretType && (len(cured) > 0 || r.replaces()) {
			s.retry()
		}
		if onTrial {
			if charge := w.trial.pass(w); charge != nil {
				s.report.refused(*charge)
			}
		}
		return
	}
	// which says all of it again: the answer to that counts
	if next := w.oldest(); w.full && next != nil {
		next.absorb(r)
		return
	}
	s.revert(w, r)
	open, past := s.suspects(w, r)
	suspects := slices.Concat(open, past)
	slices.Sort(suspects)
	message := refusal.GetMessage()
	guilty := named(message, suspects)
	charge := func() *Refusal {
		return &Refusal{Type: w.typeURL, Nonce: r.nonce, Version: r.version, Error: s.told(message),
			Resources: suspects}
	}
	switch {
	case len(guilty) > 0:
	case len(suspects) <= 1:
		guilty = suspects
	case len(past) > 0: // it may be about those. The others are sent again, and judged then
		if !onTrial {
			s.report.refused(*charge())
			s.tellCured(w, suspects)
		}
		return
	case w.trial == nil:
		w.trial = &trial{rounds: 1, charge: charge()}
		w.trial.split(slices.Clone(suspects))
		return
	case !onTrial: // one trial at a time: these are sent again after it, and judged then
		return
	case w.trial.rounds < maxRounds:
		w.trial.rounds++
		w.trial.groups = w.trial.groups[:len(w.trial.groups)-1]
		w.trial.split(suspects)
		return
	default:
		for _, group := range w.trial.groups[:len(w.trial.groups)-1] {
			for name := range group {
				suspects = append(suspects, name)
			}
		}
		guilty, w.trial = suspects, nil
	}
	if w.trial != nil && onTrial {
		w.trial.charge = nil
		if len(guilty) >= len(suspects) {
			w.trial.pass(w)
		}
	}
	s.refuse(w, r, message, guilty)
}

// refuse records that the client does not take these of the resources of a response, and tells.
func (s *session) refuse(w *watch, r *response, message string, names []string) {
	told := Refusal{Type: w.typeURL, Nonce: r.nonce, Version: r.version, Error: s.told(message),
		Resources: names}
	if len(names) == 0 { // of nothing new: whatever it is about, it is in this response
		for _, sent := range r.resources {
			told.Resources = append(told.Resources, sent.Name)
		}
	}
	slices.Sort(told.Resources)
	sent := make(map[string]*resource.Resource, len(r.resources))
	for _, one := range r.resources {
		sent[one.Name] = one
	}
	told.Versions = make([]string, len(told.Resources))
	var over []string // that the client has, or is told, something else already
	for i, name := range told.Resources {
		now := s.get(w, name)
		// the last: suspect since an earlier round
		one := cmp.Or(r.changes[name].after, sent[name], now)
		if one == nil {
			continue
		}
		for _, origin := range one.Origins {
			if !slices.Contains(told.Origins, origin) {
				told.Origins = append(told.Origins, origin)
			}
		}
		told.Versions[i] = one.Version
		held := w.keeps(name, now)
		switch {
		case len(names) == 0:
		case !w.wants(name) || w.changing(name) == nil && same(held, now):
			delete(w.refused, name)
			over = append(over, name)
		default:
			w.refused[name] = &refused{resource: one, held: held, message: told.Error,
				since: time.Now()}
		}
	}
	if len(names) > 0 {
		told.Kept = make([]string, len(told.Resources))
	}
	for i := range told.Kept {
		name := told.Resources[i]
		if kept := w.keeps(name, s.get(w, name)); kept != nil {
			told.Kept[i] = kept.Version
		}
	}
	s.report.refused(told)
	s.tellCured(w, over)
}

// cured returns the names that were refused before and are accepted with a response.
func (w *watch) cured(r *response) (names []string) {
	for name, was := range w.refused {
		c, ok := r.changes[name]
		if ok && (was.again || !same(c.after, was.resource)) && !same(c.after, was.held) {
			delete(w.refused, name)
			names = append(names, name)
		}
	}
	return names
}

// replaces tells whether a response changes what the client held.
func (r *response) replaces() bool {
	for _, c := range r.changes {
		if c.before != nil {
			return true
		}
	}
	return false
}

// retry has listeners and clusters that were refused sent once more. Envoy refuses one that needs a
// secret which it has and which is not right, as a certificate is that has been renewed and whose
// key has not.
func (s *session) retry() {
	for _, typeURL := range [...]string{resource.ListenerType, resource.ClusterType} {
		if w := s.watches[typeURL]; w != nil {
			for _, r := range w.refused {
				r.again = true
			}
		}
	}
}

func (s *session) tellCured(w *watch, names []string) {
	if len(names) > 0 {
		slices.Sort(names)
		s.report.cured(w.typeURL, names)
	}
}

// named returns those of the names that an error message gives. Envoy's messages read "Error
// adding/updating cluster(s) a: why, b: why", with a line per listener, or quote the name; a name
// in any other place may be a word that only looks like it.
func named(message string, names []string) (found []string) {
	message = message[:min(len(message), 16*clipLength)]
	for _, name := range names {
		if name == "" {
			continue
		}
		for rest, from := message, 0; ; {
			i := strings.Index(rest, name)
			if i < 0 {
				break
			}
			before, after := message[:from+i], message[from+i+len(name):]
			if listed(before, after) || quoted(before, after) {
				found = append(found, name)
				break
			}
			from += i + 1
			rest = message[from:]
		}
	}
	return found
}

func listed(before, after string) bool {
	if !strings.HasPrefix(after, ": ") {
		return false
	}
	return strings.HasSuffix(before, "(s) ") || strings.HasSuffix(before, ", ") ||
		strings.HasSuffix(before, "\n")
}

func quoted(before, after string) bool {
	return strings.HasSuffix(before, `"`) && strings.HasPrefix(after, `"`) ||
		strings.HasSuffix(before, "'") && strings.HasPrefix(after, "'")
}

// told is what of a client's message is passed on.
func (s *session) told(message string) string {
	if s.words != nil {
		message = s.words(message)
	}
	return strings.ToValidUTF8(message[:min(len(message), clipLength)], "")
}
