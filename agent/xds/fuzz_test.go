package xds

import (
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
)

// FuzzSession runs a session with arbitrary requests. The session must not panic or exceed its
// limits. Once the client has accepted everything, the session must have nothing to send.
func FuzzSession(f *testing.F) {
	// Each byte of the input is one step: an action (low three bits) on a type (next two bits) with
	// a name (high three bits).
	f.Add(true, []byte{0x00, 0x07, 0x01, 0x06, 0x08, 0x0f, 0x02})
	f.Add(false, []byte{0x08, 0x48, 0x07, 0x05, 0x06, 0x01, 0x0f, 0x03, 0x07})
	f.Add(true, []byte{0x20, 0x04, 0x24, 0x44, 0x07, 0x03, 0x07, 0x06, 0x26})
	// the client answers some responses late
	f.Add(true, []byte{0x00, 0x06, 0xe7, 0xe7, 0x06, 0xe7, 0xc3, 0x06, 0xe7, 0xc4, 0xc0})
	f.Fuzz(func(t *testing.T, delta bool, program []byte) {
		program = program[:min(len(program), 256)]
		p := newTable(t, delta)
		types := [...]string{cds, eds, lds, "other"}
		names := [...]string{"a", "b", "c", "d", "*", "", "g", "h"}
		contents := 0
		for i, b := range program {
			typeURL, name := types[b>>3&3], names[b>>5]
			var nonce string
			if w := p.session.watches[typeURL]; w != nil {
				nonce = w.lastNonce
				if name >= "g" && len(w.late) > 0 {
					nonce = w.late[0].nonce
				}
			}
			r := &request{typeURL: typeURL, nonce: nonce, names: []string{name}}
			switch b & 7 {
			case 0:
				r.nonce, r.names, r.subscribe = "", nil, nil
			case 1:
				r.subscribe = []string{name}
			case 2:
				r.unsubscribe, r.names = []string{name}, nil
			case 3:
				r.refusal = &statusv3.Status{Message: "\"" + name + "\" is bad"}
			case 4:
				r.refusal = &statusv3.Status{Message: "bad"}
			case 5:
				r.nonce, r.versions, r.subscribe = "", map[string]string{name: "v"}, []string{name,
					"*"}
			case 6:
				contents++
				if contents%3 == 0 {
					p.remove(typeURL, name)
				} else {
					p.publish(made(typeURL, name+"="+string(rune('0'+i%7))))
				}
				continue
			case 7:
				p.now = p.now.Add(time.Duration(b) * 10 * time.Millisecond)
				p.session.expire(p.now)
				p.session.next(p.now)
				continue
			}
			_ = p.session.handle(r) // an error is correct if the client requests too much
		}
		p.publish(cluster("last=1"))
		for range 1000 {
			sent := p.session.next(p.now)
			var w *watch
			if sent != nil {
				w = p.session.watches[sent.typeURL]
			}
			// if the session sends nothing, the client accepts a response that is still unanswered
			for _, other := range p.session.order {
				if w == nil && other.inflight != nil {
					w = other
				}
			}
			if w == nil {
				break
			}
			p.session.handleAnswer(w, w.inflight, nil)
		}
		listeners := p.session.watches[lds]
		withheld := listeners != nil && p.session.awaitsListeners(listeners)
		for _, w := range p.session.order {
			if w.inflight != nil || w.trial != nil || w.answer {
				t.Errorf("%s is not at rest: %+v", short(w.typeURL), w)
			}
			for name, d := range w.differs {
				now := p.session.get(w, name)
				r := w.refused[name]
				refused := r != nil && same(r.resource, now)
				removal := withheld && now == nil
				if d.forced || !refused && !removal && !same(d.held, now) {
					t.Errorf("%s %q: differs for no reason: %+v", short(w.typeURL), name, d)
				}
			}
		}
	})
}

// FuzzRequest decodes arbitrary bytes as a request, and handles it.
func FuzzRequest(f *testing.F) {
	for _, m := range []proto.Message{
		&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds},
		&discoveryv3.DeltaDiscoveryRequest{TypeUrl: eds, ResourceNamesSubscribe: []string{"a", "*"},
			ResourceNamesUnsubscribe: []string{"a"},
			InitialResourceVersions:  map[string]string{"a": "1"},
			ErrorDetail:              &statusv3.Status{Message: "bad"}},
		&discoveryv3.DeltaDiscoveryRequest{TypeUrl: sds,
			ResourceNamesSubscribe: []string{"default", "file-cert:/c~/k", "kubernetes://a"}},
		&discoveryv3.DiscoveryRequest{TypeUrl: sds, ResourceNames: []string{"ROOTCA", "*"}},
	} {
		encoded, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encoded)
	}
	versions := func(all map[string]string) []byte {
		encoded, err := proto.Marshal(
			&discoveryv3.DeltaDiscoveryRequest{TypeUrl: eds, InitialResourceVersions: all})
		if err != nil {
			f.Fatal(err)
		}
		return encoded
	}
	several := versions(map[string]string{"a": "1", "b": "", "": "2"})
	f.Add(slices.Concat(several, versions(map[string]string{"a": "3"})))
	f.Add(several[:len(several)-1])
	f.Add(append(several[:len(several):len(several)], 5<<3|2, 3, 1<<3|2, 1, 0xff)) // not UTF-8
	f.Add(append(several[:len(several):len(several)], 5<<3, 1, 5<<3|2, 4, 1<<3, 1, 3<<3, 1))
	f.Fuzz(func(t *testing.T, encoded []byte) {
		var delta deltaRequest
		sameDecoded(t, encoded)
		var state discoveryv3.DiscoveryRequest
		for _, one := range []struct {
			err     error
			delta   bool
			request *request
		}{
			{delta.decode(encoded), true, fromDelta(&delta)},
			{proto.Unmarshal(encoded, &state), false, fromState(&state)},
		} {
			if one.err != nil {
				continue
			}
			p := newDemandTable(t, one.delta)
			p.publish(cluster("a=1"), made(eds, "a=1"), made(sds, "default=1"))
			p.absent("ROOTCA")
			if p.session.handle(one.request) == nil {
				for p.session.next(p.now) != nil {
				}
				_ = p.session.handle(one.request)
			}
		}
	})
}

// sameDecoded checks that a request is decoded as package proto does.
func sameDecoded(t *testing.T, encoded []byte) {
	t.Helper()
	var got deltaRequest
	var want discoveryv3.DeltaDiscoveryRequest
	gotErr, wantErr := got.decode(encoded), proto.Unmarshal(encoded, &want)
	if (gotErr != nil) != (wantErr != nil) {
		t.Fatalf("%v, want %v", gotErr, wantErr)
	}
	got.InitialResourceVersions = got.versions
	if wantErr == nil && !proto.Equal(&got.DeltaDiscoveryRequest, &want) {
		t.Errorf("%v, want %v", &got.DeltaDiscoveryRequest, &want)
	}
}
