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
	pageSize = 500             // objects in one page of a list
	pageTime = time.Minute     // time-out for one page of a list
	early    = 5 * time.Second // how much earlier than its deadline a watch may end regularly
)

// retries returns the back-off of lists. For a kind that the API server does not have, it reaches
// its longest pause.
func retries() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10,
		Cap: 20 * time.Second}
}

// collection reads the objects of one resource, in one namespace or in all, and records their
// versions. A cache.Reflector lists and watches them. Its fields are guarded by the lock of its
// feed.
type collection struct {
	feed      *feed
	kind      string
	namespace string // namespace that is read; "": all
	resource  schema.GroupVersionResource
	istio     bool // a kind of Istio: resource is the version that the API server has
	optional  bool // without permission the collection counts as empty
	trim      func(runtime.Object)

	known  map[string]string   // UID and version of each object, by namespace/name
	stale  map[string]struct{} // objects of known that are missing in an empty list
	listed bool                // the first list is complete, or there is nothing to list

	err       error
	forbidden bool // the list is forbidden, and the collection optional
	missing   bool // whether the API server does not have the kind, and so no objects are known
	since     time.Time
	deadline  time.Time // deadline of the current watch
	broken    bool      // a watch has failed since the last list
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

// IsWatchListSemanticsUnSupported makes the Reflector request lists page by page, so that a list is
// either complete or an error.
func (c *collection) IsWatchListSemanticsUnSupported() bool { return true }

// List implements cache.Lister.
func (c *collection) List(options metav1.ListOptions) (runtime.Object, error) {
	return c.ListWithContext(context.Background(), options)
}

// Watch implements cache.Watcher.
func (c *collection) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return c.WatchWithContext(context.Background(), options)
}

// ListWithContext returns a page of a list. The first list comes from the API server's cache, as in
// Kubernetes' informers; the watch adds what the cache lacks. Later lists, and lists of kinds that
// restrict access, must be up to date. A list may be older than the previous one, because the API
// server may have been restored from a backup.
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
	return !c.listed && !object.Kind(c.kind).Restricts()
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

// find returns the resource to list. The error is NotFound if the API server does not have it.
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

// WatchWithContext watches from the version of the list. If the previous watch ended before its
// deadline, it requires a new list: the API server may have been restarted with other data, which a
// watch would not show.
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

// contact records the result of a request.
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
	case apierrors.IsResourceExpired(err): // the Reflector requests a new list next
	case c.missing, c.forbidden && len(c.known) == 0:
		c.err, c.since, c.listed = nil, time.Now(), true
	default:
		c.err, c.broken = fmt.Errorf("%s: %w", c.kind, err), true
	}
}

// Replace implements cache.ReflectorStore: it processes a complete list.
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
	// the UID is included, because objects of different clusters may have the same version
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
