// Package clones reports hosts that share an identity because their virtual machine was cloned
// after it had joined.
//
// A clone uses the certificate of the original until its renewal; later it has its own certificate
// for the same name and identity. If xDS streams from two addresses use one certificate, or one
// name with one identity, at the same time, a condition is raised until one of them ends. When the
// address of a host changes, the server has streams from both addresses until it detects the end of
// the old ones. The condition is therefore raised only after the streams have overlapped for
// ReconnectGrace.
package clones

import (
	"fmt"
	"iter"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/xds"
)

// conditionCloned is active while two hosts use one certificate, or one name with one identity.
const conditionCloned = "cloned-hosts"

// ReconnectGrace is the minimum time for which streams of two hosts must overlap to be reported.
// The server detects within ten seconds that a host has vanished, and ends its streams.
const ReconnectGrace = 30 * time.Second

// maxListed bounds the number of certificates and names in the condition's sentence.
const maxListed = 10

// Detector observes the xDS streams of a server. It implements xds.Observer.
type Detector struct {
	board *condition.Registry

	mu   sync.Mutex
	used map[string]map[client]int // number of streams, by certificate or name and by client
	// time since which two hosts have used a certificate or name; absent if at most one does
	since map[string]time.Time
	due   *time.Timer // runs report when the next ReconnectGrace is over; nil: none
}

// client identifies a host by addresses. One host may be several clients, because its connections
// may use IPv4 and IPv6.
type client struct {
	address netip.Addr // source address of the connection
	node    string     // address in the ID of the node
}

// differs reports whether two clients are certainly on different hosts.
func (c client) differs(from client) bool {
	return c.address != from.address &&
		(c.node != from.node || c.address.Is4() == from.address.Is4())
}

// New returns a Detector without streams.
func New(board *condition.Registry) *Detector {
	return &Detector{board: board, used: map[string]map[client]int{}, since: map[string]time.Time{}}
}

// uses returns descriptions of the certificate and of the name that a stream uses, and its client.
// It returns no descriptions for a stream without an identity.
func uses(s xds.Stream) (what []string, from client) {
	// ID of an Envoy's node: TYPE~ADDRESS~NAME~DOMAIN
	node := strings.Split(s.Node.GetId(), "~")
	host, _, _ := net.SplitHostPort(s.Peer.Address)
	address, err := netip.ParseAddr(host)
	if err != nil || s.Peer.Identity == "" || len(node) != 4 {
		return nil, client{}
	}
	if c := s.Peer.Certificate; c != nil {
		what = append(what, "certificate "+c.SerialNumber.Text(16)+" of "+s.Peer.Identity)
	}
	const longest = 256 // maximum number of bytes of a name
	name := node[2][:min(len(node[2]), longest)]
	return append(what, fmt.Sprintf("name %q of %s", name, s.Peer.Identity)),
		client{address.Unmap().WithZone(""), node[1]}
}

// OnConnect records a stream.
func (d *Detector) OnConnect(s xds.Stream) {
	what, from := uses(s)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range what {
		if d.used[one] == nil {
			d.used[one] = map[client]int{}
		}
		d.used[one][from]++
		d.check(one)
	}
}

// OnDisconnect removes a stream.
func (d *Detector) OnDisconnect(s xds.Stream, _ error) {
	what, from := uses(s)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range what {
		clients := d.used[one]
		if clients[from]--; clients[from] <= 0 {
			delete(clients, from)
			d.check(one)
		}
		if len(clients) == 0 {
			delete(d.used, one)
		}
	}
}

// check compares the clients that use a certificate or name, and updates its time in
// Detector.since. Callers hold mu.
func (d *Detector) check(what string) {
	_, before := d.since[what]
	_, _, found := pair(maps.Keys(d.used[what]))
	switch {
	case found && !before:
		d.since[what] = time.Now()
		if d.due == nil {
			d.due = time.AfterFunc(ReconnectGrace, d.report)
		}
	case !found && before:
		delete(d.since, what)
		d.publish()
	}
}

// pair returns two clients that are certainly different hosts. It compares each client with only
// two clients of each other address: these two have different node addresses, so that it differs
// from one of them if it differs from a third one. The number of addresses is small: of three
// addresses, two are of one family and therefore belong to different hosts.
func pair(clients iter.Seq[client]) (a, b client, found bool) {
	var before []client
	for b := range clients {
		same := 0 // number of earlier clients with the same address
		for _, a := range before {
			if a.differs(b) {
				return a, b, true
			}
			if a.address == b.address {
				same++
			}
		}
		if same < 2 {
			before = append(before, b)
		}
	}
	return client{}, client{}, false
}

// report updates the condition. If other certificates or names have been in use by two hosts for
// less than ReconnectGrace, it schedules the next report.
func (d *Detector) report() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.due = nil
	d.publish()
	next := time.Duration(-1)
	for _, since := range d.since {
		if left := ReconnectGrace - time.Since(since); left > 0 && (next < 0 || left < next) {
			next = left
		}
	}
	if next > 0 {
		d.due = time.AfterFunc(next, d.report)
	}
}

// publish raises the condition if two hosts have been using the same certificate or name for at
// least ReconnectGrace, else it clears the condition. Callers hold mu.
func (d *Detector) publish() {
	var listed []string
	more := 0
	for _, what := range slices.Sorted(maps.Keys(d.since)) {
		if time.Since(d.since[what]) < ReconnectGrace {
			continue
		}
		if len(listed) == maxListed {
			more++
			continue
		}
		sorted := slices.SortedFunc(maps.Keys(d.used[what]), func(a, b client) int {
			return a.address.Compare(b.address)
		})
		a, b, _ := pair(slices.Values(sorted)) // a pair with the lowest addresses
		listed = append(listed, fmt.Sprintf("%s is used by %s and %s", what, a.address, b.address))
	}
	if len(listed) == 0 {
		d.board.Clear(conditionCloned)
		return
	}
	if more > 0 {
		listed = append(listed, fmt.Sprintf("%d more", more))
	}
	d.board.Raise(conditionCloned, condition.Warning, "hosts seem to be clones of each other: "+
		strings.Join(listed, "; ")+"; on a clone, set its host name, run \"outrider leave\" and "+
		"\"outrider join\" with a token of its own")
}

// OnPush implements xds.Observer.
func (*Detector) OnPush(xds.Stream, xds.Push) {}

// OnAck implements xds.Observer.
func (*Detector) OnAck(xds.Stream, string, string) {}

// OnNack implements xds.Observer.
func (*Detector) OnNack(xds.Stream, xds.Refusal) {}

// OnNackResolved implements xds.Observer.
func (*Detector) OnNackResolved(xds.Stream, string, []string) {}
