package xds

import (
	"cmp"
	"slices"
	"strings"
	"time"

	statusv3 "google.golang.org/genproto/googleapis/rpc/status"

	"outrider.org/outrider/agent/resource"
)

// Refusal is a client's refusal (NACK) of resources.
//
// Versions has the refused version of each resource, "" if unknown. VersionsInUse has the version
// that the client continues to use, "" if none. It is nil if the client may have accepted some of
// the resources.
type Refusal struct {
	Type          string            `json:"type"`    // type URL of the refused resources
	Nonce         string            `json:"nonce"`   // nonce of the refused response
	Version       string            `json:"version"` // version of the refused response
	Error         string            `json:"error"`   // error message of the client, at most 4 KiB
	Resources     []string          `json:"resources"`
	Versions      []string          `json:"versions"`
	VersionsInUse []string          `json:"kept"`
	Origins       []resource.Origin `json:"origins"` // origins of the refused resources
	// NothingAccepted reports whether the client has never accepted a resource of the type.
	NothingAccepted bool `json:"first"`
}

// OneLineError returns the client's error message on one line.
func (r Refusal) OneLineError() string {
	return strings.Join(strings.Split(strings.TrimSpace(r.Error), "\n"), "; ")
}

// refused is a resource that the client refused. It is sent again if its content changes, if the
// feed retries it, or if the client accepts a secret that may have caused the refusal.
type refused struct {
	resource *resource.Resource
	// version that the client has, or that is sent to it, in place of the refused one; nil: none
	instead *resource.Resource
	message string
	since   time.Time
	again   bool // the refused version is to be sent once more
	// number of retries by the feed when the version was refused; see resource.RefusedVersion
	attempt int
	// other clients refused the version before this one subscribed, so it was not sent to this one
	inherited bool
}

// has reports whether the resource one is the refused version, and must not be sent again.
func (r *refused) has(one *resource.Resource) bool {
	return r != nil && !r.again && one != nil && same(r.resource, one)
}

// target returns the version of a resource that the client should use. now is the version in the
// snapshot, held the one that the client has. target returns now unless the client refused it, then
// held unless it is nil, and otherwise the last accepted version.
func (w *watch) target(name string, held, now *resource.Resource) *resource.Resource {
	r := w.refused[name]
	switch {
	case !r.has(now):
		return now
	case held != nil:
		return held
	}
	return r.instead
}

// trial determines which resources of a response were refused if the client's error does not name
// them. It sends each half of the suspects separately, until the refused resources are isolated and
// all others accepted.
type trial struct {
	groups []map[string]struct{} // resources still suspected; the last group was sent
	rounds int

	// whole is the refusal of the whole response, which is reported if the trial finds no refused
	// resource. This happens with secrets: Envoy accepts a secret without validation if it equals
	// the one that it refused.
	whole *Refusal
}

// maxRounds bounds the responses by which a session finds the refused resources. It suffices to
// find three resources among thousands. If it is exceeded, all remaining suspects count as refused.
const maxRounds = 64

// clipLength bounds the stored error message of a client, in bytes.
const clipLength = 4096

func (t *trial) has(name string) bool {
	_, on := t.groups[len(t.groups)-1][name]
	return on
}

// pass removes the last group of suspects (resources that may have been refused), which the client
// answered or which need not be sent. If no group is left, the trial ends. Then, if no refused
// resource was found, pass returns the refusal of the whole response.
func (t *trial) pass(w *watch) *Refusal {
	t.groups = t.groups[:len(t.groups)-1]
	if len(t.groups) > 0 {
		return nil
	}
	w.trial = nil
	return t.whole
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

// join notifies the feed, once, that the client has answered a response with listeners.
func (s *session) join(w *watch) {
	if w.typeURL == resource.ListenerType && !s.joined {
		s.joined = true
		s.feed.AddClient(s.client, s.epoch())
	}
}

// handleAnswer processes the client's ACK or NACK of a response.
func (s *session) handleAnswer(w *watch, r *response, refusal *statusv3.Status) {
	if r == w.inflight {
		w.inflight = nil
	}
	s.join(w)
	onTrial := w.trial != nil && r.trial == w.trial
	if refusal == nil {
		w.versionAccepted, w.lastAccepted = r.version, time.Now()
		s.accept(r)
		s.report.accepted(r)
		recovered := w.recovered(r)
		s.reportRecovered(w, recovered)
		if w.typeURL == resource.SecretType && (len(recovered) > 0 || r.replaces()) {
			s.retry()
		}
		if onTrial {
			if whole := w.trial.pass(w); whole != nil {
				s.feed.Refuse(s.client, s.uncertain(w, whole.Resources, whole.Error)...)
				s.report.refused(*whole)
			}
		}
		return
	}
	if s.handleRestoring(w, r) {
		return
	}
	// a later response contains all resources again, so the answer to it decides
	if next := w.oldest(); w.full && next != nil {
		next.absorb(r)
		return
	}
	s.revert(w, r)
	open, past := s.suspects(w, r)
	suspects := slices.Concat(open, past)
	slices.Sort(suspects)
	message := refusal.GetMessage()
	refusedNames := named(message, suspects)
	whole := func() *Refusal {
		return &Refusal{Type: w.typeURL, Nonce: r.nonce, Version: r.version, Error: s.redact(message),
			Resources: suspects}
	}
	switch {
	case len(refusedNames) > 0:
	case len(suspects) <= 1:
		refusedNames = suspects
	case w.oneByOne(): // the client skipped responses, whose resources are sent again
		return
	// the client may have refused outdated versions; all other resources are sent again
	case len(past) > 0:
		if !onTrial {
			s.report.refused(*whole())
			s.reportRecovered(w, suspects)
		}
		return
	case w.trial == nil:
		w.trial = &trial{rounds: 1, whole: whole()}
		w.trial.split(slices.Clone(suspects))
		return
	case !onTrial: // another trial is running; these resources are sent again after it
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
		refusedNames, w.trial = suspects, nil
	}
	if w.trial != nil && onTrial {
		w.trial.whole = nil
		if len(refusedNames) >= len(suspects) {
			w.trial.pass(w)
		}
	}
	s.refuse(w, r, message, refusedNames)
}

// refuse records and reports that the client refused the named resources in a response.
func (s *session) refuse(w *watch, r *response, message string, names []string) {
	report := Refusal{Type: w.typeURL, Nonce: r.nonce, Version: r.version, Error: s.redact(message),
		Resources: names}
	// if the response changed nothing, any of its resources may be the refused one
	if len(names) == 0 {
		for _, sent := range r.resources {
			report.Resources = append(report.Resources, sent.Name)
		}
	}
	slices.Sort(report.Resources)
	sent := make(map[string]*resource.Resource, len(r.resources))
	for _, one := range r.resources {
		sent[one.Name] = one
	}
	report.Versions = make([]string, len(report.Resources))
	// names of resources of which the client already has the newest version
	var over []string
	var nacks []resource.Nack
	nacked := map[string]bool{}
	for i, name := range report.Resources {
		now := s.get(w, name)
		// The response may lack the resource: maxRounds made suspects of earlier rounds refused.
		one := cmp.Or(r.changes[name].after, sent[name], now)
		if one == nil {
			continue
		}
		for _, origin := range one.Origins {
			if !slices.Contains(report.Origins, origin) {
				report.Origins = append(report.Origins, origin)
			}
		}
		report.Versions[i] = one.Version
		held := w.acknowledged(name, now)
		switch {
		case len(names) == 0:
		case !w.wants(name) || w.changing(name) == nil && same(held, now):
			delete(w.refused, name)
			over = append(over, name)
		// the version sent last was the last accepted one, which the client has refused, too
		case w.refused[name].has(now) && !same(one, now):
			w.refused[name].instead = nil
		default:
			w.refused[name] = &refused{resource: one, instead: held, message: report.Error,
				since: time.Now()}
			if same(one, now) {
				nacks = append(nacks, s.nack(w, one, held, message, report.Error))
				nacked[name] = true
			}
		}
		if w.oneByOne() && w.wants(name) && len(names) > 0 {
			w.hold(name, held, now, true)
		}
	}
	if len(names) == 0 {
		nacks = s.uncertain(w, report.Resources, report.Error)
	} else {
		report.VersionsInUse = make([]string, len(report.Resources))
	}
	snapshot := s.feed.Refuse(s.client, nacks...)
	for i, name := range report.Resources {
		refused := w.refused[name]
		if len(names) == 0 {
			continue
		}
		if refused == nil {
			if held := w.acknowledged(name, s.get(w, name)); held != nil {
				report.VersionsInUse[i] = held.Version
			}
			continue
		}
		of := snapshot.Refusal(resource.Key{Type: w.typeURL, Name: name})
		if nacked[name] && of != nil && same(of.Resource, refused.resource) {
			refused.instead, refused.attempt = cmp.Or(refused.instead, of.InUse()), of.Retries
		}
		if refused.instead != nil {
			report.VersionsInUse[i] = refused.instead.Version
		}
	}
	report.NothingAccepted = s.holdsNothing(w)
	s.report.refused(report)
	// Publishing the refusal may have added resources to the snapshot: those that the client uses
	// instead of refused ones, and listeners whose replacement was refused.
	if snapshot.Sequence > s.snapshot.Sequence {
		s.advance(s.visibleOf(snapshot))
	}
	s.reportRecovered(w, over)
}

// visibleOf returns a snapshot without the resources that the client may not receive.
func (s *session) visibleOf(snapshot *resource.Snapshot) *resource.Snapshot {
	if s.visible == nil {
		return snapshot
	}
	return s.visible(snapshot)
}

// holdsNothing reports whether the client has never accepted a resource of a type.
func (s *session) holdsNothing(w *watch) bool {
	if w.versionAccepted != "" {
		return false
	}
	for _, d := range w.differs {
		if d.held != nil {
			return false
		}
	}
	for name := range s.snapshot.ByType(w.typeURL) {
		if _, differs := w.differs[name]; !differs && w.wants(name) {
			return false
		}
	}
	return true
}

// recovered returns the names of those resources in a response that the client had refused before,
// and that it accepts now.
func (w *watch) recovered(r *response) (names []string) {
	for name, was := range w.refused {
		c, ok := r.changes[name]
		if ok && (was.again || !same(c.after, was.resource)) && !same(c.after, was.instead) {
			delete(w.refused, name)
			names = append(names, name)
		}
	}
	return names
}

// replaces reports whether a response changes or removes a resource that the client had before.
func (r *response) replaces() bool {
	for _, c := range r.changes {
		if c.before != nil {
			return true
		}
	}
	return false
}

func (s *session) reportRecovered(w *watch, names []string) {
	if len(names) > 0 {
		slices.Sort(names)
		s.report.recovered(w.typeURL, names)
	}
}

// named returns those names that an error message of Envoy contains as names of resources: in
// "Error adding/updating cluster(s) a: why, b: why", at the beginning of a line for each listener,
// or in quotes. At other places of the message a name may be an ordinary word.
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

// redact returns a client's error message without secrets, cut to clipLength bytes.
func (s *session) redact(message string) string {
	if s.redactor != nil {
		message = s.redactor(message)
	}
	return strings.ToValidUTF8(message[:min(len(message), clipLength)], "")
}
