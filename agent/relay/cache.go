package relay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/lifecycle"
	xdsresource "outrider.org/outrider/agent/resource"
)

// identity identifies a node at an upstream server. Cached resources of one identity are never
// served to another.
type identity string

// identityOf returns the identity of a node at an upstream server, beginning with the server's
// address. It leaves out fields that change with Envoy's version.
func identityOf(node *corev3.Node, address string) identity {
	reduced := &corev3.Node{Id: node.GetId(), Cluster: node.GetCluster(),
		Metadata: node.GetMetadata(), Locality: node.GetLocality()}
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(reduced)
	if err != nil {
		text = []byte(node.GetId()) // unreachable, because the node was decoded from a message
	}
	sum := sha256.Sum256(text)
	return identity(identityStart(address, node.GetId()) + hex.EncodeToString(sum[:]))
}

// identityStart returns the prefix that all identities of a node ID at an upstream server have. The
// node's IP address is not part of it, because it may be unknown when the agent starts.
func identityStart(address, id string) string {
	// a node ID of Istio consists of type, IP address, name and domain
	if parts := strings.Split(id, "~"); len(parts) == 4 {
		id = parts[0] + "~" + parts[2] + "~" + parts[3]
	}
	sum := sha256.Sum256([]byte(id))
	return address + "#" + hex.EncodeToString(sum[:]) + "#"
}

// snapshot holds the resources that a node accepted last. Its maps are never modified.
type snapshot struct {
	identity identity
	saved    time.Time // time of the last change
	// the snapshot was read from the file, and the node has not accepted a response since
	restored bool
	types    map[string]accepted
}

type accepted struct {
	version   string
	resources map[string]resource
}

// Cache stores accepted resources in memory and writes them to a file.
type Cache struct {
	path  string
	most  int // maximum size of the file in bytes
	board *condition.Registry
	dirty chan struct{} // signals that the file must be written; has room for one signal

	mu     sync.Mutex
	maxAge time.Duration // maximum age of a snapshot read from the file; 0: no limit
	// snapshots of the last two nodes, the current one first; two epochs that run at the same time
	// may have different nodes
	nodes []*snapshot
}

const maxNodes = 2

// Codes of the cache's conditions.
const (
	// the cache file could not be used; active until the cache is written
	conditionRefused = "discovery-cache-refused"
	// the cache file could not be written; active until a write succeeds
	conditionUnwritten = "discovery-cache-unwritten"
	// the resources in the cache file are too old; active until Envoy accepts resources
	conditionExpired = "discovery-cache-expired"
)

// OpenCache reads the cache from a file. An invalid file raises a condition and is ignored.
func OpenCache(path string, board *condition.Registry) *Cache {
	c := &Cache{path: path, most: maxFileBytes, board: board, dirty: make(chan struct{}, 1)}
	nodes, err := readFile(path)
	if err != nil {
		board.Raise(conditionRefused, condition.Warning, fmt.Sprintf(
			"the cached configuration is not used: %v; it is replaced at the next one that Envoy accepts",
			err))
		return c
	}
	for _, node := range nodes {
		node.restored = true
	}
	c.nodes = nodes
	return c
}

// setMaxAge sets the maximum age of snapshots that were read from the file. Older ones are not
// served; 0 means no limit.
func (c *Cache) setMaxAge(age time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.maxAge = age
}

// expired reports whether a snapshot from the file is too old to be served. The caller must hold
// mu.
func (c *Cache) expired(node *snapshot) bool {
	return node.restored && c.maxAge > 0 && time.Since(node.saved) > c.maxAge
}

// reportExpired raises conditionExpired if a node's snapshot is too old to be served.
func (c *Cache) reportExpired(of identity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, node := range c.nodes {
		if node.identity == of && c.expired(node) {
			c.board.Raise(conditionExpired, condition.Error, fmt.Sprintf(
				"the cached configuration is not served: Envoy accepted it at %s, longer ago than "+
					"[discovery] cache_max_age (%v)", node.saved.Format(time.RFC3339), c.maxAge))
		}
	}
}

// put replaces a node's resources of a type. The caller must not modify held after the call.
func (c *Cache) put(of identity, typeURL, version string, held map[string]resource) {
	// secrets are not cached, because they contain private keys
	if typeURL == xdsresource.SecretType {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	node := &snapshot{identity: of, types: map[string]accepted{}}
	if known := c.node(of); known != nil {
		maps.Copy(node.types, known.types)
	}
	node.saved = time.Now()
	c.board.Clear(conditionExpired)
	node.types[typeURL] = accepted{version, held}
	nodes := []*snapshot{node}
	for _, other := range c.nodes {
		if other.identity != of && len(nodes) < maxNodes {
			nodes = append(nodes, other)
		}
	}
	c.nodes = nodes
	select {
	case c.dirty <- struct{}{}:
	default:
	}
}

// exceeded raises conditionUnwritten because the accepted resources have more than the limit most,
// in bytes.
func (c *Cache) exceeded(most int64) {
	c.unwritten(fmt.Errorf("the accepted resources have more than %d MB", most>>20))
}

// node returns the snapshot of a node, or nil if the cache has none or may not serve it. The caller
// must hold mu.
func (c *Cache) node(of identity) *snapshot {
	for _, node := range c.nodes {
		if node.identity == of && !c.expired(node) {
			return node
		}
	}
	return nil
}

// get returns a node's cached resources of a type and their version; nil if no resources of the
// type may be served.
func (c *Cache) get(of identity, typeURL string) (map[string]resource, string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	node := c.node(of)
	if node == nil {
		return nil, ""
	}
	found := node.types[typeURL]
	return found.resources, found.version
}

// newest returns the resources of a type that a node with this ID accepted last from an upstream
// server.
func (c *Cache) newest(address, id, typeURL string) (all []resource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, node := range c.nodes {
		accepted, ok := node.types[typeURL]
		if ok && !c.expired(node) && strings.HasPrefix(string(node.identity), identityStart(address, id)) {
			return slices.Collect(maps.Values(accepted.resources))
		}
	}
	return nil
}

// madeFrom returns a cached extension configuration into which the relay has put a Wasm module.
// source is the SHA-256 checksum of the resource that the upstream server sent without the module.
// It returns nil if none is cached.
func (c *Cache) madeFrom(source []byte) []byte {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, node := range c.nodes {
		for _, one := range node.types[xdsresource.ExtensionType].resources {
			if bytes.Equal(one.source, source) {
				// without the copy, the content of the whole file would remain in memory
				return bytes.Clone(one.body)
			}
		}
	}
	return nil
}

// savedAt returns when the node last accepted resources; zero if unknown.
func (c *Cache) savedAt(of identity) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if node := c.node(of); node != nil {
		return node.saved
	}
	return time.Time{}
}

// Cache.run writes the file writeDelay after a change, and no more often than every writeInterval.
const (
	writeDelay    = time.Second
	writeInterval = 30 * time.Second
)

// run writes the file after changes, and again when ctx ends. It retries a failed write.
func (c *Cache) run(ctx context.Context) error {
	pause := writeDelay
	var again <-chan time.Time // timer of the next retry; nil unless the last write failed
	for {
		select {
		case <-c.dirty:
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		case <-again:
		case <-ctx.Done():
			if again != nil || len(c.dirty) > 0 {
				_ = c.write() // the condition reports the error
			}
			return nil
		}
		again = lifecycle.RetryTimer(c.write())
		pause = writeInterval
	}
}

// write saves the cache to its file and updates the cache's conditions. It returns the error of
// writing the file.
func (c *Cache) write() error {
	c.mu.Lock()
	nodes, without := fit(c.nodes, c.most)
	c.mu.Unlock()
	if err := writeFile(c.path, nodes); err != nil {
		c.unwritten(err)
		return err
	}
	c.board.Clear(conditionRefused)
	if without > 0 {
		c.unwritten(fmt.Errorf("%d Wasm extensions are not stored, because the cache file may have at "+
			"most %d MB", without, c.most>>20))
		return nil
	}
	c.board.Clear(conditionUnwritten)
	return nil
}

func (c *Cache) unwritten(why error) {
	c.board.Raise(conditionUnwritten, condition.Warning, fmt.Sprintf(
		"the accepted configuration cannot be cached: %v; a start without the upstream server "+
			"would lack it", why))
}
