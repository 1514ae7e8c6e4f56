package ports

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/hostconflict"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/sockdiag"
	"outrider.org/outrider/agent/xds"
)

// fakeHost is a host with fake sockets, on which Envoy cannot bind some listeners.
type fakeHost struct {
	*UnboundListeners
	mesh   map[string]bool // listeners that Envoy refused for reasons other than a bind error
	epochs chan struct{}

	lock    sync.Mutex
	sockets []sockdiag.Socket
	pid     int // PID of the live Envoy; 0: none
	retried []string
}

func newFakeHost(feed *resource.Feed) *fakeHost {
	s := &fakeHost{mesh: map[string]bool{}, epochs: make(chan struct{}, 1)}
	s.UnboundListeners = NewUnboundListeners(UnboundOptions{
		Host: hostconflict.Host{Sockets: func() ([]sockdiag.Socket, error) {
			s.lock.Lock()
			defer s.lock.Unlock()
			return s.sockets, nil
		},
			ListenerProgram: func(sockdiag.Socket) string { return "nginx.service" }},
		Source: sourceOf{feed}, Conditions: condition.NewRegistry(),
		LiveEnvoy: func() (int, bool) {
			s.lock.Lock()
			defer s.lock.Unlock()
			return s.pid, s.pid != 0
		},
		EpochsChanged: func() <-chan struct{} { return s.epochs },
		ResendListeners: func(_ context.Context, stream uint64, names []string) {
			s.lock.Lock()
			defer s.lock.Unlock()
			for _, name := range names {
				s.retried = append(s.retried, fmt.Sprintf("%d %s", stream, name))
			}
		},
	})
	return s
}

func (s *fakeHost) with(do func()) {
	s.lock.Lock()
	defer s.lock.Unlock()
	do()
}

// condition returns the sentence of the condition, "" if it is not active.
func (s *fakeHost) condition() string {
	synctest.Wait()
	for _, c := range s.Conditions.Conditions() {
		if c.Code == ConditionUnbound {
			return c.Sentence
		}
	}
	return ""
}

func (s *fakeHost) refuse(stream xds.Stream, message string, names ...string) {
	kept := make([]string, len(names))
	rest, _ := s.OnNack(stream, xds.Refusal{Type: resource.ListenerType, Resources: names,
		Versions: slices.Clone(kept), VersionsInUse: kept,
		Error: "Error adding/updating listener(s) " + message, NothingAccepted: true})
	for _, name := range rest.Resources {
		s.mesh[name] = true
	}
}

var gateway = resource.Origin{File: "edge.yaml", Line: 3, Kind: "Gateway", Namespace: "default",
	Name: "edge"}

func of(t *testing.T, name, host string, port uint32, change ...func(*listenerv3.Listener)) *resource.Resource {
	t.Helper()
	r := listenerOf(t, name, host, port)
	if len(change) > 0 {
		listener := &listenerv3.Listener{}
		if err := proto.Unmarshal(r.EncodedMessage(), listener); err != nil {
			t.Fatal(err)
		}
		change[0](listener)
		var err error
		if r, err = resource.New(name, listener); err != nil {
			t.Fatal(err)
		}
	}
	r.Origins = []resource.Origin{{File: "gzip.yaml", Line: 1, Kind: "EnvoyFilter"}, gateway}
	return r
}

// A listener that cannot be bound raises a condition that names its Gateway. It is resent to the
// live Envoy once its address is free.
func TestUnbound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		feed := resource.NewFeed()
		captured := of(t, "captured", "0.0.0.0", 82, func(l *listenerv3.Listener) {
			l.BindToPort = wrapperspb.Bool(false)
		})
		feed.Publish(resource.Change{Set: []*resource.Resource{of(t, "web", "0.0.0.0", 80),
			of(t, "api", "127.0.0.1", 81), captured}})
		s := newFakeHost(feed)
		s.sockets = []sockdiag.Socket{{Address: netip.MustParseAddrPort("0.0.0.0:80")},
			{Address: netip.MustParseAddrPort("0.0.0.0:82")}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = s.Run(ctx) }()
		old, next := xds.Stream{ID: 1, Peer: xds.Peer{PID: 10}}, xds.Stream{ID: 2, Peer: xds.Peer{PID: 20}}

		const taken = "edge.yaml:3: Gateway default/edge: nothing listens on 0.0.0.0:80: the port is " +
			"taken by nginx.service of user root; end it, or give the Gateway another port; it is tried " +
			"again by itself once the port is free"
		const inUse = "web: cannot bind '0.0.0.0:80': Address already in use"
		s.refuse(old, inUse+"\napi: bad filter\n", "web", "api")
		if got := s.condition(); got != taken {
			t.Errorf("condition %q", got)
		}
		if len(s.mesh) != 1 || !s.mesh["api"] {
			t.Errorf("the discovery server reverts %v", s.mesh)
		}
		if why := s.NotReadyReason(); why != "" {
			t.Errorf("not ready: %s", why)
		}
		s.refuse(old, "api: cannot bind '127.0.0.1:81': Permission denied\n", "api")
		if why := s.NotReadyReason(); !strings.HasPrefix(why, "none of the listeners") ||
			!strings.Contains(why, "127.0.0.1:81 (Permission denied), 0.0.0.0:80 (Address already in use)") {
			t.Errorf("ready without a listener: %q", why)
		}
		synctest.Wait()
		if p := s.Problems(); len(p) != 2 || p[0].File != "edge.yaml" {
			t.Errorf("problems %v", p)
		}
		time.Sleep(3 * bindPause)
		synctest.Wait()
		if n := len(s.retried); n < 3 || n > 4 || slices.Contains(s.retried, "1 web") {
			t.Errorf("in three minutes retried: %q", s.retried)
		}

		// The next epoch cannot bind the listener either. Its responses are considered once it is
		// live.
		s.with(func() { s.retried, s.pid = nil, 20 })
		s.refuse(next, inUse, "web")
		if got := s.condition(); got != taken {
			t.Errorf("next epoch: %q", got)
		}
		if why := s.NotReadyReason(); why != "" {
			t.Errorf("next epoch: not ready: %s", why)
		}
		s.with(func() { s.sockets = nil })
		time.Sleep(2 * unboundPause)
		if got := s.condition(); got != taken || !slices.Equal(s.retried, []string{"2 web"}) {
			t.Errorf("free: %q, retried %q", got, s.retried)
		}
		s.OnNackResolved(next, resource.ListenerType, []string{"web"})
		if got := s.condition(); got != "" || len(s.Problems()) > 0 {
			t.Errorf("bound: %q", got)
		}
		s.with(func() { s.pid = 10 }) // the next epoch has died
		s.epochs <- struct{}{}
		if got := s.condition(); !strings.Contains(got, "0.0.0.0:80") {
			t.Errorf("the old epoch serves: %q", got)
		}
		feed.Publish(resource.Change{Remove: []resource.Key{{Type: resource.ListenerType, Name: "web"},
			{Type: resource.ListenerType, Name: "api"}}})
		time.Sleep(2 * unboundPause)
		if got := s.condition(); got != "" || s.NotReadyReason() != "" {
			t.Errorf("removed: %q %q", got, s.NotReadyReason())
		}
		s.OnStreamEnd(old)
		s.OnStreamEnd(next)
		if len(s.streams) > 0 {
			t.Errorf("%d streams", len(s.streams))
		}
	})
}

// An Envoy that has refused all its first listeners makes the agent not ready, until it accepts
// listeners.
func TestUnbound_FirstResourcesRefused(t *testing.T) {
	feed := resource.NewFeed()
	feed.Publish(resource.Change{Set: []*resource.Resource{of(t, "web", "0.0.0.0", 80)}})
	s := newFakeHost(feed)
	stream := xds.Stream{ID: 1}
	s.refuse(stream, "web: bad filter\n", "web")
	if why := s.NotReadyReason(); why != "Envoy refused all of its first Listeners: Error adding/updating "+
		"listener(s) web: bad filter" {
		t.Errorf("%q", why)
	}
	s.OnAck(stream, resource.ClusterType)
	if s.NotReadyReason() == "" {
		t.Error("it has accepted only clusters")
	}
	s.OnAck(stream, resource.ListenerType)
	if why := s.NotReadyReason(); why != "" {
		t.Errorf("%q", why)
	}
}

// A listener whose address the host lacks is resent once the host has the address.
func TestUnbound_AddressMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		feed := resource.NewFeed()
		feed.Publish(resource.Change{Set: []*resource.Resource{of(t, "none", "192.0.2.254", 80)}})
		s := newFakeHost(feed)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = s.Run(ctx) }()
		s.refuse(xds.Stream{ID: 1}, "none: cannot bind '192.0.2.254:80': Cannot assign requested "+
			"address", "none")
		if got := s.condition(); !strings.Contains(got, "nothing listens on 192.0.2.254:80: this host "+
			"does not have the address; correct the address of the Gateway") {
			t.Errorf("%q", got)
		}
		time.Sleep(3 * bindPause)
		if len(s.retried) > 0 {
			t.Errorf("retried %q", s.retried)
		}
	})
}
