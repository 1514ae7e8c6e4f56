package xds

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"outrider.org/outrider/agent/resource"
)

// TestPipelines_Random runs a client that answers responses late but in order, and refuses each
// response that contains a bad resource. The session must never assume that the client uses a bad
// resource. Once the client has answered all responses, it must have a version of each resource,
// and the newest one unless that is bad. With state-of-the-world xDS, the client may answer several
// responses with one request.
func TestPipelines_Random(t *testing.T) {
	for seed := range uint64(400) {
		each(t, func(t *testing.T, p *pipeline) {
			random := rand.New(rand.NewPCG(seed, 2))
			c := &randomClient{pipeline: p, random: random, bad: map[string]bool{},
				took: map[string]string{"a": "1", "b": "1", "c": "1"}, merges: p.whole &&
					seed%2 == 1}
			for i := range 20 {
				for _, name := range []string{"a", "b", "c"} {
					c.bad[fmt.Sprintf("%s=%d", name, 2+i)] = random.IntN(2) == 0
				}
			}
			for range 60 {
				switch random.IntN(4) {
				case 0:
					p.put(fmt.Sprintf("%c=%d", "abc"[random.IntN(3)], 2+random.IntN(20)))
				case 1:
					c.answer()
				case 2:
					if len(c.queue) < maxLate || c.merges {
						p.tire()
					}
				}
				c.receive()
				c.check()
			}
			for rounds := 0; len(c.queue) > 0; rounds++ {
				if c.answer(); rounds == 1000 {
					t.Fatal("it never ends")
				}
				c.receive()
				c.check()
			}
			for name, now := range p.session.snapshot.ByType(p.typeURL) {
				if c.took[name] == "" {
					t.Errorf("the client has nothing of %s", name)
				}
				if !c.isBad(now) && c.took[name] != string(now.EncodedMessage()) {
					t.Errorf("the client has %s=%s, and %s is the newest", name, c.took[name],
						now.EncodedMessage())
				}
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// randomClient refuses a response if it contains a bad resource, and otherwise accepts it.
type randomClient struct {
	*pipeline
	random *rand.Rand
	bad    map[string]bool
	took   map[string]string
	queue  []*response // responses that the client has not answered yet
	merges bool
}

func (c *randomClient) isBad(r *resource.Resource) bool {
	return r != nil && c.bad[r.Name+"="+string(r.EncodedMessage())]
}

func (c *randomClient) receive() {
	for r := c.session.next(c.now); r != nil; r = c.session.next(c.now) {
		c.queue = append(c.queue, r)
	}
}

// answer answers the oldest response. If merges is set, it answers all responses that it has read
// with one request.
func (c *randomClient) answer() {
	if len(c.queue) == 0 {
		return
	}
	n := 1
	if c.merges {
		n += c.random.IntN(len(c.queue))
	}
	for i, r := range c.queue[:n] {
		at := slices.IndexFunc(r.resources, c.isBad)
		if at < 0 {
			if c.whole {
				clear(c.took)
			}
			for _, one := range r.resources {
				c.took[one.Name] = string(one.EncodedMessage())
			}
		}
		switch {
		case i < n-1:
		case at < 0:
			c.take(r)
		case c.random.IntN(2) == 0:
			c.refuse(r, "bad")
		default:
			c.refuse(r, "Error adding/updating cluster(s) "+r.resources[at].Name+": bad")
		}
	}
	c.queue = c.queue[n:]
}

func (c *randomClient) check() {
	c.t.Helper()
	for name, r := range c.session.watches[c.typeURL].refused {
		if c.isBad(r.instead) || !c.isBad(r.resource) {
			c.t.Fatalf("%s: %s is held and %s refused", name, r.instead.EncodedMessage(), r.resource.EncodedMessage())
		}
	}
}
