package kubernetes

import (
	"context"
	"crypto/sha256"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
)

// Source delivers the objects of Istio's kinds as JSON.
type Source struct {
	feed
	status  *statusWriter // nil: the validity of objects is not written to their status
	pending map[string][]byte
	sums    map[string][sha256.Size]byte // SHA-256 sum of the text last sent for each path
}

// NewSource returns a source. Its only error is a failure to register the Kubernetes types.
func NewSource(options Options, sink source.Sink) (*Source, error) {
	at, err := newConnection(options.Kubeconfig)
	if err != nil {
		return nil, err
	}
	s := &Source{pending: map[string][]byte{}, sums: map[string][sha256.Size]byte{}}
	s.feed = newFeed(options.Name, at, s, sink)
	if options.WriteStatus {
		s.status = newStatusWriter(at)
	}
	for _, kind := range istioKinds() {
		for _, namespace := range orAll(options.Namespaces) {
			c := newCollection(&s.feed, string(kind), namespace)
			c.istio = true
			s.collections = append(s.collections, c)
		}
	}
	return s, nil
}

func orAll(namespaces []string) []string {
	if len(namespaces) == 0 {
		return []string{""}
	}
	return namespaces
}

// Run watches the API server, and writes statuses if configured, until ctx ends.
func (s *Source) Run(ctx context.Context) error {
	if s.status == nil {
		return s.feed.Run(ctx)
	}
	var writing sync.WaitGroup
	writing.Go(func() { s.status.run(ctx) })
	defer writing.Wait()
	return s.feed.Run(ctx)
}

func (s *Source) path(kind, key string) string { return s.name + ":" + kind + "/" + key }

// prepare implements preparer. It encodes the objects of a list without the feed's lock.
func (s *Source) prepare(c *collection, list []any) {
	s.mu.Lock()
	gv := c.resource.GroupVersion()
	s.mu.Unlock()
	_ = inParallel(len(list), func(i int) error { // encode returns no error
		list[i].(*istioObject).encode(gv, c.kind)
		return nil
	})
}

func (s *Source) set(c *collection, key string, o runtime.Object) {
	in := o.(*istioObject)
	if in.encoded == nil {
		in.encode(c.resource.GroupVersion(), c.kind)
	}
	path := s.path(c.kind, key)
	if s.status != nil {
		s.status.set(path, in)
	}
	if in.encoded == nil {
		return // encode has failed: the spec is not JSON, which no API server sends
	}
	s.pending[path] = in.encoded
	s.change(path)
}

func (s *Source) remove(c *collection, key string) {
	path := s.path(c.kind, key)
	if s.status != nil {
		s.status.remove(path)
	}
	s.pending[path] = nil
	s.change(path)
}

func (s *Source) input(path string) (store.SourceInput, bool) {
	text := s.pending[path]
	delete(s.pending, path)
	before, had := s.sums[path]
	if text == nil {
		delete(s.sums, path)
		return store.SourceInput{Path: path}, had
	}
	sum := sha256.Sum256(text)
	s.sums[path] = sum
	return store.SourceInput{Path: path, Text: text}, !had || before != sum
}

func (s *Source) count() int { return len(s.sums) }

// ReportProblems passes the current problems of all objects to the source, which writes them to the
// objects' statuses. The discovery server calls it after each push. A problem's File is the path of
// the object's input.
func (s *Source) ReportProblems(problems []object.Problem) {
	if s.status != nil {
		s.status.report(problems)
	}
}

// Status returns the state of the connection to the API server. Its problem includes statuses that
// cannot be written.
func (s *Source) Status() source.Status {
	status := s.feed.Status()
	if s.status == nil {
		return status
	}
	if problem := s.status.problem(); problem != "" {
		status.Problem = strings.TrimPrefix(status.Problem+"; "+problem, "; ")
	}
	return status
}
