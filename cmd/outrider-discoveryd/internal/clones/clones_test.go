package clones

import (
	"crypto/x509"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/xds"
)

const identity = "spiffe://cluster.local/ns/shop/sa/web"

// streamOf returns a stream of a host with a source address, the address and name in the ID of its
// node, and the serial number of its certificate (0: none).
func streamOf(address, node, name string, serial int64) xds.Stream {
	s := xds.Stream{Node: &corev3.Node{Id: "sidecar~" + node + "~" + name + "~shop.svc"},
		Peer: xds.Peer{Address: address, Identity: identity}}
	if serial != 0 {
		s.Peer.Certificate = &x509.Certificate{SerialNumber: big.NewInt(serial)}
	}
	return s
}

func TestDetector_ReportsClones(t *testing.T) {
	one := streamOf("10.0.0.1:1000", "10.0.0.1", "a.shop", 17)
	anonymous := streamOf("10.0.0.2:1000", "10.0.0.2", "a.shop", 0)
	anonymous.Peer.Identity = ""
	for name, test := range map[string]struct {
		other xds.Stream
		want  []string // texts in the condition's sentence; nil: no condition
	}{
		"certificate": {streamOf("10.0.0.2:1", "10.0.0.1", "b.shop", 17),
			[]string{"certificate 11 of " + identity + " is used by 10.0.0.1 and 10.0.0.2; on a clone"}},
		"name": {streamOf("10.0.0.2:1", "10.0.0.2", "a.shop", 18),
			[]string{`name "a.shop" of ` + identity + " is used by 10.0.0.1 and 10.0.0.2; on a clone"}},
		"both": {streamOf("10.0.0.2:1", "10.0.0.2", "a.shop", 17),
			[]string{"certificate 11", `name "a.shop"`}},
		"the same host":            {streamOf("10.0.0.1:1001", "10.0.0.1", "a.shop", 17), nil},
		"the other family":         {streamOf("[fd00::1]:1001", "10.0.0.1", "a.shop", 17), nil},
		"another host":             {streamOf("10.0.0.2:1", "10.0.0.2", "b.shop", 18), nil},
		"without identity":         {anonymous, nil},
		"not the node of an Envoy": {xds.Stream{Peer: xds.Peer{Address: "10.0.0.2:1"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				board := condition.NewRegistry()
				d := New(board)
				said := func() string {
					synctest.Wait()
					return fmt.Sprint(board.Conditions())
				}
				d.OnConnect(one)
				d.OnConnect(test.other)
				time.Sleep(ReconnectGrace - time.Second)
				if got := said(); got != "[]" {
					t.Errorf("too early: %s", got)
				}
				time.Sleep(2 * time.Second)
				got := said()
				for _, want := range test.want {
					if !strings.Contains(got, want) {
						t.Errorf("%s; want %s", got, want)
					}
				}
				if test.want == nil && got != "[]" {
					t.Errorf("reported: %s", got)
				}
				d.OnDisconnect(test.other, nil)
				if got := said(); got != "[]" {
					t.Errorf("one host is left: %s", got)
				}
				d.OnDisconnect(one, nil)
				if len(d.used)+len(d.since) > 0 {
					t.Errorf("left: %v %v", d.used, d.since)
				}
			})
		})
	}
}

// A host whose address changes has streams from both addresses for less than ReconnectGrace, and is
// not reported. A second host with the same certificate is reported, even after such changes.
func TestDetector_MovesAreNoClones(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		board := condition.NewRegistry()
		d := New(board)
		for i := range 5 {
			d.OnConnect(streamOf(fmt.Sprintf("10.0.0.%d:1", i), "10.0.0.1", "a.shop", 17))
			time.Sleep(10 * time.Second)
			if i > 0 {
				d.OnDisconnect(streamOf(fmt.Sprintf("10.0.0.%d:1", i-1), "10.0.0.1", "a.shop", 17),
					nil)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := fmt.Sprint(board.Conditions()); got != "[]" {
				t.Fatalf("move %d: %s", i, got)
			}
		}
		d.OnConnect(streamOf("10.0.1.1:1", "10.0.1.1", "b.shop", 17))
		time.Sleep(ReconnectGrace + time.Second)
		synctest.Wait()
		if got := fmt.Sprint(board.Conditions()); !strings.Contains(got, "10.0.0.4 and 10.0.1.1") {
			t.Errorf("condition: %s", got)
		}
	})
}

// For many clones, the condition's sentence has a bounded length.
func TestDetector_IsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		board := condition.NewRegistry()
		d := New(board)
		for i := range 100 {
			for _, host := range []string{"1", "2", "3"} {
				d.OnConnect(streamOf(fmt.Sprintf("10.0.%d.%s:1", i, host), "10.0.0."+host,
					strings.Repeat("a", 1000)+fmt.Sprint(i), int64(i+1)))
			}
		}
		time.Sleep(ReconnectGrace + time.Second)
		synctest.Wait()
		got := fmt.Sprint(board.Conditions())
		if len(got) > 8<<10 || !strings.Contains(got, "; 91 more; ") {
			t.Errorf("%d bytes: %s", len(got), got)
		}
	})
}

// Streams of one host are not compared with each other, which would take too long, even if the host
// claims a different node address on each of them.
func TestDetector_ManyStreamsOfOneHost(t *testing.T) {
	d := New(condition.NewRegistry())
	started := time.Now()
	for i := range 3000 {
		d.OnConnect(streamOf("10.0.0.1:1", fmt.Sprint(i), "a.shop", 17))
	}
	if len(d.since) > 0 {
		t.Errorf("one address is taken for two hosts: %v", d.since)
	}
	d.OnConnect(streamOf("[fd00::1]:1", "1", "a.shop", 17))
	if len(d.since) != 2 {
		t.Errorf("the second host is not noticed: %v", d.since)
	}
	if took := time.Since(started); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
}
