package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"outrider.org/outrider/agent/discovery/object"
)

const (
	pageSize = 500         // objects in one page of a list
	pageTime = time.Minute // time-out for one page of a list
	// a watch that ends at most this much before its deadline has ended regularly
	early = 5 * time.Second
)

// retries returns the back-off between attempts to list. If the API server lacks a kind, attempts
// continue at the longest interval.
func retries() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10,
		Cap: 20 * time.Second}
}

// collection lists and watches the objects of one resource, in one namespace or in all, with a
// cache.Reflector. It records the versions of the objects. The lock of its feed guards its fields.
type collection struct {
	feed      *feed
	kind      string
	namespace string // namespace of the objects; "": all namespaces
	resource  schema.GroupVersionResource
	istio     bool // kind is one of Istio's; resource has the version that the API server serves
	optional  bool // if the list is forbidden, the collection counts as empty
	trim      func(runtime.Object)

	known  map[string]string   // UID and version of each object, by namespace/name
	stale  map[string]struct{} // keys of known objects that are retained though a list was empty
	listed bool                // a complete list has been received, or there is nothing to list

	err       error
	forbidden bool // the API server forbids the list of an optional collection
	missing   bool // the API server lacks the kind, and no objects are known
	since     time.Time
	deadline  time.Time // deadline of the current watch
	broken    bool      // a request has failed since the last list
}

func newCollection(f *feed, kind, namespace string) *collection {
	return &collection{feed: f, kind: kind, namespace: namespace, known: map[string]string{},
		stale: map[string]struct{}{}}
}

func (c *collection) run(ctx context.Context) {
	r := cache.NewReflectorWithOptions(c, nil, c, cache.ReflectorOptions{Name: c.kind,
		TypeDescription: c.kind, Backoff: retries()})
	r.WatchListPageSize = pageSize
	r.RunWithContext(ctx)
}

// IsWatchListSemanticsUnSupported makes the Reflector request lists in pages instead of streaming
// them over a watch. A list in pages is either complete or an error.
func (c *collection) IsWatchListSemanticsUnSupported() bool { return true }

// List implements cache.Lister.
func (c *collection) List(options metav1.ListOptions) (runtime.Object, error) {
	return c.ListWithContext(context.Background(), options)
}

// Watch implements cache.Watcher.
func (c *collection) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return c.WatchWithContext(context.Background(), options)
}

// ListWithContext returns a page of a list. As in Kubernetes' informers, the first list may come
// from the API server's cache; the watch then delivers newer changes. Later lists, and lists of
// kinds that restrict access, must be up to date. A list may be older than the previous one: the
// API server may have been restored from a backup.
func (c *collection) ListWithContext(ctx context.Context,
	options metav1.ListOptions) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	options.ResourceVersion, options.ResourceVersionMatch = "", ""
	if options.Continue == "" && c.takesCached() {
		options.ResourceVersion = "0"
	}
	list, err := c.page(ctx, options)
	if err == nil && c.trim != nil {
		err = meta.EachListItem(list, func(o runtime.Object) error { c.trim(o); return nil })
	}
	c.contact(err)
	return list, err
}

func (c *collection) takesCached() bool {
	c.feed.mu.Lock()
	defer c.feed.mu.Unlock()
	return !c.listed && !object.Kind(c.kind).CanRestrictAccess()
}

// request returns a request for the objects of the collection.
func (c *collection) request(ctx context.Context,
	options metav1.ListOptions) (*rest.Request, error) {
	resource, err := c.find(ctx)
	if err != nil {
		return nil, err
	}
	client, err := c.feed.connection.client(resource.GroupVersion())
	if err != nil {
		return nil, err
	}
	return client.Get().NamespaceIfScoped(c.namespace, c.namespace != "").
		Resource(resource.Resource).
		SpecificallyVersionedParams(&options, metav1.ParameterCodec, metav1.SchemeGroupVersion), nil
}

func (c *collection) page(ctx context.Context,
	options metav1.ListOptions) (runtime.Object, error) {
	request, err := c.request(ctx, options)
	if err != nil {
		return nil, err
	}
	return request.Do(ctx).Get()
}

// find returns the resource to list. The error is NotFound if the API server lacks the kind.
func (c *collection) find(ctx context.Context) (schema.GroupVersionResource, error) {
	if !c.istio {
		return c.resource, nil
	}
	resource, ok, err := c.feed.connection.served(ctx, c.kind)
	if err == nil && !ok {
		err = apierrors.NewNotFound(schema.GroupResource{Resource: c.kind}, "")
	}
	if err == nil {
		c.feed.mu.Lock()
		c.resource = resource
		c.feed.mu.Unlock()
	}
	return resource, err
}

// WatchWithContext starts a watch at the version of the list. If the previous watch ended before
// its deadline, it requests a new list instead: the API server may have been restarted with other
// data, which a watch would not report.
func (c *collection) WatchWithContext(ctx context.Context,
	options metav1.ListOptions) (watch.Interface, error) {
	if c.lost() {
		return nil, apierrors.NewResourceExpired("the connection was lost")
	}
	options.Watch = true
	w, err := c.watch(ctx, options)
	c.contact(err)
	if err == nil {
		c.feed.mu.Lock()
		c.deadline = time.Now().Add(time.Duration(*options.TimeoutSeconds) * time.Second)
		c.feed.mu.Unlock()
	}
	return w, err
}

func (c *collection) watch(ctx context.Context,
	options metav1.ListOptions) (watch.Interface, error) {
	request, err := c.request(ctx, options)
	if err != nil {
		return nil, err
	}
	return request.Watch(ctx)
}

func (c *collection) lost() bool {
	c.feed.mu.Lock()
	defer c.feed.mu.Unlock()
	return c.broken || time.Now().Before(c.deadline.Add(-early))
}

// contact records the result of a request to the API server.
func (c *collection) contact(err error) {
	if status := apierrors.APIStatus(nil); err != nil && (!errors.As(err, &status) ||
		apierrors.IsUnauthorized(err)) {
		c.feed.connection.failed()
	}
	c.feed.mu.Lock()
	defer c.feed.mu.Unlock()
	defer c.feed.signal()
	c.forbidden = c.optional && apierrors.IsForbidden(err)
	missing := c.istio && apierrors.IsNotFound(err)
	c.missing = missing && len(c.known) == 0
	switch {
	case err == nil:
		c.err, c.since = nil, time.Now()
	case apierrors.IsResourceExpired(err): // no failure: the Reflector requests a new list
	case c.missing, c.forbidden && len(c.known) == 0:
		c.err, c.since, c.listed = nil, time.Now(), true
	default:
		c.err, c.broken = fmt.Errorf("%s: %w", c.kind, err), true
	}
}

// Replace implements cache.ReflectorStore. It processes a complete list. An empty list removes no
// known objects.
func (c *collection) Replace(list []any, _ string) error {
	if p, ok := c.feed.handler.(preparer); ok {
		p.prepare(c, list)
	}
	c.feed.mu.Lock()
	defer c.feed.mu.Unlock()
	defer c.feed.signal()
	c.listed, c.broken, c.deadline = true, false, time.Time{}
	present := make(map[string]struct{}, len(list))
	for _, item := range list {
		key, err := c.set(item)
		if err != nil {
			return err
		}
		present[key] = struct{}{}
	}
	for key := range c.known {
		if _, ok := present[key]; ok {
			continue
		}
		if _, stale := c.stale[key]; stale || len(list) == 0 {
			c.stale[key] = struct{}{}
			continue
		}
		c.remove(key)
	}
	return nil
}

// set passes an object to the handler if it is new or changed.
func (c *collection) set(item any) (key string, err error) {
	o, ok := item.(runtime.Object)
	if !ok {
		return "", fmt.Errorf("%T is not an object", item)
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return "", err
	}
	key = m.GetNamespace() + "/" + m.GetName()
	delete(c.stale, key)
	// Objects of another cluster may have the same version, so the UID is part of it.
	version := string(m.GetUID()) + " " + m.GetResourceVersion()
	if c.known[key] != version {
		c.known[key] = version
		c.feed.handler.set(c, key, o)
	}
	return key, nil
}

func (c *collection) remove(key string) {
	delete(c.known, key)
	delete(c.stale, key)
	c.feed.handler.remove(c, key)
}

// Add implements cache.ReflectorStore.
func (c *collection) Add(o any) error { return c.Update(o) }

// Update implements cache.ReflectorStore.
func (c *collection) Update(item any) error {
	c.feed.mu.Lock()
	defer c.feed.mu.Unlock()
	defer c.feed.signal()
	c.since = time.Now()
	_, err := c.set(item)
	return err
}

// Delete implements cache.ReflectorStore.
func (c *collection) Delete(item any) error {
	m, err := meta.Accessor(item)
	if err != nil {
		return err
	}
	c.feed.mu.Lock()
	defer c.feed.mu.Unlock()
	defer c.feed.signal()
	c.since = time.Now()
	c.remove(m.GetNamespace() + "/" + m.GetName())
	return nil
}

// Bookmark implements cache.ReflectorBookmarkStore.
func (c *collection) Bookmark(string) error {
	c.feed.mu.Lock()
	defer c.feed.mu.Unlock()
	c.since = time.Now()
	return nil
}

// Resync implements cache.ReflectorStore.
func (c *collection) Resync() error { return nil }
