package xds

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	statusv3 "google.golang.org/genproto/googleapis/rpc/status"

	"outrider.org/outrider/agent/resource"
)

// table drives a session step by step: the test sends the requests of the client and sets the time.
type table struct {
	t       testing.TB
	feed    *resource.Feed
	session *session
	now     time.Time
	events  []string
	last    map[string]*response

	refusals []Refusal
}

func newTable(t testing.TB, delta bool) *table {
	feed := resource.NewFeed()
	empty, _ := feed.Current()
	p := &table{t: t, feed: feed, now: time.Unix(1000, 0), last: map[string]*response{}}
	p.session = &session{delta: delta, patience: defaultTimeout, snapshot: empty, feed: feed,
		epoch:  func() int { return 0 },
		shared: newBodies(), sets: newNameSets(), report: p,
		limits: limits{types: 4, nameBytes: 100, bytes: 1000}, watches: map[string]*watch{}}
	return p
}

func (p *table) accepted(r *response) { p.events = append(p.events, "accepted "+short(r.typeURL)) }

func (p *table) refused(r Refusal) {
	p.refusals = append(p.refusals, r)
	p.events = append(p.events, fmt.Sprintf("refused %s %v", short(r.Type), r.Resources))
}

func (p *table) recovered(typeURL string, names []string) {
	p.events = append(p.events, fmt.Sprintf("recovered %s %v", short(typeURL), names))
}

func (p *table) notOffered(typeURL string) {
	p.events = append(p.events, "not offered "+short(typeURL))
}

// cluster returns a cluster described by "name=content".
func cluster(s string) *resource.Resource { return made(resource.ClusterType, s) }

func made(typeURL, s string) *resource.Resource {
	name, content, _ := strings.Cut(s, "=")
	return resource.FromEncoded(typeURL, name, []byte(content))
}

func (p *table) publish(resources ...*resource.Resource) {
	p.feed.Publish(resource.Change{Set: resources})
	p.follow()
}

func (p *table) remove(typeURL string, names ...string) {
	var change resource.Change
	for _, name := range names {
		change.Remove = append(change.Remove, resource.Key{Type: typeURL, Name: name})
	}
	p.feed.Publish(change)
	p.follow()
}

func (p *table) follow() {
	snapshot, _ := p.feed.Current()
	p.session.advance(snapshot)
}

func (p *table) ask(r *request) {
	p.t.Helper()
	if err := p.session.handle(r); err != nil {
		p.t.Fatalf("request %+v: %v", r, err)
	}
}

// ack accepts the last response of a type; nack refuses it. In the state of the world both requests
// contain names.
func (p *table) ack(typeURL string, names ...string) {
	p.t.Helper()
	p.ask(&request{typeURL: typeURL, nonce: p.last[typeURL].nonce, names: names})
}

func (p *table) nack(typeURL, message string, names ...string) {
	p.t.Helper()
	p.ask(&request{typeURL: typeURL, nonce: p.last[typeURL].nonce, names: names,
		refusal: &statusv3.Status{Code: 3, Message: message}})
}

// sends compares the responses that the session sends now, before any answer, with the wanted ones,
// such as "CDS a=content b -removed".
func (p *table) sends(want ...string) {
	p.t.Helper()
	var got []string
	for r := p.session.next(p.now); r != nil; r = p.session.next(p.now) {
		p.last[r.typeURL] = r
		got = append(got, line(r))
	}
	if d := cmp.Diff(want, got); d != "" {
		p.t.Errorf("sent (-want +got):\n%s", d)
	}
}

func line(r *response) string {
	var parts []string
	for _, one := range r.resources {
		parts = append(parts, one.Name+"="+string(one.EncodedMessage()))
	}
	slices.Sort(parts)
	for _, name := range slices.Sorted(slices.Values(r.removed)) {
		parts = append(parts, "-"+name)
	}
	return strings.TrimSpace(short(r.typeURL) + " " + strings.Join(parts, " "))
}

func (p *table) saw(want ...string) {
	p.t.Helper()
	if d := cmp.Diff(want, p.events); d != "" {
		p.t.Errorf("events (-want +got):\n%s", d)
	}
	p.events = nil
}

const cds, eds, lds, rds = resource.ClusterType, resource.EndpointType, resource.ListenerType,
	resource.RouteType
