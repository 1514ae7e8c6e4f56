package relay

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

// TestUpstream_ThatResetsIsOneEvent connects to a load balancer without an istiod, which accepts
// connections and resets them. There is one event and one log line, however often the relay
// retries, and another event when the load balancer refuses connections instead.
func TestUpstream_ThatResetsIsOneEvent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	tried := make(chan bool, 1000)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
			tried <- true
		}
	}()
	r := startRelay(t, serverAt(l.Addr().String()), "")
	events, end := r.board.Watch(1000)
	defer end()
	c := r.connect(t, false, false)
	c.send(&discoveryv3.DiscoveryRequest{Node: testNode(t), TypeUrl: clusterType})
	for range 12 {
		select {
		case <-tried:
		case <-time.After(20 * time.Second):
			t.Fatal("the server is not tried again")
		}
	}
	parts.Eventually(t, time.Minute, "an error", func() bool { return r.Status().Error != "" })
	_ = l.Close()
	parts.Eventually(t, time.Minute, "the server refuses connections", func() bool {
		return strings.Contains(r.condition(conditionAway), "refused")
	})
	if n := len(events); n != 2 {
		t.Errorf("%d events", n)
		for range n {
			t.Log((<-events).Sentence)
		}
	}
	for _, line := range strings.Split(r.log.String(), "\n") {
		if strings.Contains(line, "upstream") && !strings.Contains(line, "level=DEBUG") {
			t.Errorf("logged beside the condition: %s", line)
		}
	}
	c.end(nil)
}

// TestServer_FailuresOfAClassAreOneEvent checks that errors of one class cause one event, even if
// their ports, times or sessions differ.
func TestServer_FailuresOfAClassAreOneEvent(t *testing.T) {
	board := condition.NewRegistry()
	events, end := board.Watch(100)
	defer end()
	s := New(Options{Conditions: board})
	sessions := []*session{{}, {}, {}}
	for _, one := range sessions {
		s.join(one)
	}
	for i := range 10_000 {
		for j, one := range sessions {
			s.report(one, state{err: fmt.Errorf(
				"read tcp 10.0.0.1:%d->10.0.0.2:15012: i/o timeout (class %c)", 1024+i, 'a'+j)})
		}
	}
	if n := len(events); n != 1 {
		t.Errorf("%d events", n)
	}
	s.report(sessions[0], state{err: errors.New("x509: certificate has expired")})
	if n := len(events); n != 2 {
		t.Errorf("another class: %d events", n)
	}
	for _, one := range sessions {
		s.report(one, state{connected: true})
	}
	if all := board.Conditions(); len(all) > 0 {
		t.Errorf("connected: %v", all)
	}
}
