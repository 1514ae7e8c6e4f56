package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	networking "istio.io/api/networking/v1alpha3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/registration"
)

// EntryStore stores registered workloads as WorkloadEntries in an API server. It implements
// registration.Store. The version of an entry is its resourceVersion, which the API server compares
// in each write.
type EntryStore struct {
	feed
	namespaces []string // namespaces of the workloads; empty: all
	entries    map[string]*registration.WorkloadEntry

	lease          sync.Mutex
	leaseNamespace string // namespace of the servers' Leases; "": not determined yet
}

// NewEntryStore returns a store in the API server of a source. Its only error is a failure to
// register the Kubernetes types.
func NewEntryStore(options Options) (*EntryStore, error) {
	at, err := newConnection(options.Kubeconfig)
	if err != nil {
		return nil, err
	}
	s := &EntryStore{namespaces: options.Namespaces,
		entries: map[string]*registration.WorkloadEntry{}}
	s.feed = newFeed(options.Name, at, s, func(discovery.SourceUpdate) {})
	for _, namespace := range orAll(options.Namespaces) {
		c := newCollection(&s.feed, string(object.WorkloadEntry), namespace)
		c.istio = true
		s.collections = append(s.collections, c)
	}
	return s, nil
}

func (s *EntryStore) set(_ *collection, key string, o runtime.Object) {
	delete(s.entries, key)
	if e := entryOf(o.(*istioObject)); e.Group != "" {
		s.entries[key] = e
	}
}

func (s *EntryStore) remove(_ *collection, key string) { delete(s.entries, key) }

func (s *EntryStore) input(string) (store.SourceInput, bool) { return store.SourceInput{}, false }

func (s *EntryStore) count() int { return len(s.entries) }

// Entries implements registration.Store. It omits objects that are retained although the list of
// the API server is empty: the API server has lost them, and servers must register their connected
// workloads again.
func (s *EntryStore) Entries() ([]*registration.WorkloadEntry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.collections {
		if c.err != nil {
			return nil, c.err
		}
		if !c.listed {
			return nil, errors.New("the WorkloadEntries of the API server were not read yet")
		}
	}
	all := make([]*registration.WorkloadEntry, 0, len(s.entries))
	for key, e := range s.entries {
		if !slices.ContainsFunc(s.collections, func(c *collection) bool {
			_, stale := c.stale[key]
			return stale
		}) {
			all = append(all, e)
		}
	}
	return all, nil
}

// Group implements registration.Store.
func (s *EntryStore) Group(ctx context.Context, key registration.Key) (*registration.WorkloadGroup,
	error) {
	o, err := s.get(ctx, object.WorkloadGroup, key)
	if o == nil || err != nil {
		return nil, err
	}
	spec := &networking.WorkloadGroup{}
	if len(o.Spec) > 0 {
		if err := spec.UnmarshalJSON(o.Spec); err != nil {
			return nil, fmt.Errorf("%w: WorkloadGroup %s: %w", registration.ErrInvalid, key, err)
		}
	}
	return &registration.WorkloadGroup{Key: key, UID: string(o.UID), Spec: spec}, nil
}

// Get implements registration.Store.
func (s *EntryStore) Get(ctx context.Context, key registration.Key) (*registration.WorkloadEntry,
	error) {
	o, err := s.get(ctx, object.WorkloadEntry, key)
	if o == nil || err != nil {
		return nil, err
	}
	return entryOf(o), nil
}

// get reads an object from the API server; nil: it does not exist.
func (s *EntryStore) get(ctx context.Context, kind object.Kind,
	key registration.Key) (*istioObject, error) {
	if len(s.namespaces) > 0 && !slices.Contains(s.namespaces, key.Namespace) {
		return nil, fmt.Errorf("%w: source %s does not read namespace %s",
			registration.ErrInvalid, s.name, key.Namespace)
	}
	client, resource, err := s.client(ctx, kind)
	if err != nil {
		return nil, err
	}
	found, err := at(client.Get(), resource, key).Do(ctx).Get()
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, s.failure(err)
	}
	return found.(*istioObject), nil
}

// client returns the client for a kind.
func (s *EntryStore) client(ctx context.Context, kind object.Kind) (rest.Interface,
	schema.GroupVersionResource, error) {
	resource, ok, err := s.connection.served(ctx, string(kind))
	if err == nil && !ok {
		err = fmt.Errorf("the API server has no definition of %s", kind)
	}
	if err != nil {
		return nil, resource, s.failure(err)
	}
	client, err := s.connection.client(resource.GroupVersion())
	return client, resource, err
}

func at(r *rest.Request, of schema.GroupVersionResource, key registration.Key) *rest.Request {
	return r.Namespace(key.Namespace).Resource(of.Resource).Name(key.Name)
}

// failure converts an error of a request to an error that registration.Store specifies.
func (s *EntryStore) failure(err error) error {
	status := apierrors.APIStatus(nil)
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		return fmt.Errorf("%w: %w", registration.ErrConflict, err)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return fmt.Errorf("%w: %w", registration.ErrInvalid, err)
	case !errors.As(err, &status), apierrors.IsUnauthorized(err):
		s.connection.failed()
	}
	return err
}

// Create implements registration.Store.
func (s *EntryStore) Create(ctx context.Context, w *registration.Workload,
	c registration.Connection) error {
	client, resource, err := s.client(ctx, object.WorkloadEntry)
	if err != nil {
		return err
	}
	spec, err := w.Spec.MarshalJSON()
	if err != nil {
		return fmt.Errorf("%w: %w", registration.ErrInvalid, err)
	}
	controller := true
	meta := metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name, Labels: w.Spec.Labels,
		Annotations: map[string]string{}, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: resource.GroupVersion().String(), Kind: string(object.WorkloadGroup),
			Name: w.Group.Name, UID: types.UID(w.Group.UID), Controller: &controller}}}
	for name, value := range w.Annotations {
		meta.Annotations[name] = value
	}
	for name, value := range annotations(c) {
		if text, ok := value.(string); ok {
			meta.Annotations[name] = text
		}
	}
	body, err := json.Marshal(map[string]any{"apiVersion": resource.GroupVersion().String(),
		"kind": object.WorkloadEntry, "metadata": meta, "spec": json.RawMessage(spec)})
	if err != nil {
		return err
	}
	err = client.Post().Namespace(w.Namespace).Resource(resource.Resource).Body(body).Do(ctx).Error()
	if apierrors.IsNotFound(err) { // the namespace does not exist
		return fmt.Errorf("%w: %w", registration.ErrInvalid, err)
	}
	return s.failure(err)
}

// annotations returns the annotations with the state of a connection, as a merge patch.
func annotations(c registration.Connection) map[string]any {
	text := func(at time.Time) any {
		if at.IsZero() {
			return nil // a merge patch removes fields that are null
		}
		return at.UTC().Format(time.RFC3339Nano)
	}
	return map[string]any{registration.ControllerAnnotation: c.Controller,
		registration.ConnectedAnnotation:    text(c.ConnectedAt),
		registration.DisconnectedAnnotation: text(c.DisconnectedAt)}
}

// SetConnection implements registration.Store.
func (s *EntryStore) SetConnection(ctx context.Context, e *registration.WorkloadEntry,
	c registration.Connection) error {
	return s.patch(ctx, e.Key, map[string]any{"metadata": map[string]any{
		"resourceVersion": e.Version, "annotations": annotations(c)}})
}

// patch applies a merge patch to an entry, or to one of its subresources.
func (s *EntryStore) patch(ctx context.Context, key registration.Key, change any,
	subresource ...string) error {
	client, resource, err := s.client(ctx, object.WorkloadEntry)
	if err != nil {
		return err
	}
	body, err := json.Marshal(change)
	if err != nil {
		return err
	}
	return s.failure(at(client.Patch(types.MergePatchType), resource, key).
		SubResource(subresource...).Body(body).Do(ctx).Error())
}

// SetHealth implements registration.Store.
func (s *EntryStore) SetHealth(ctx context.Context, e *registration.WorkloadEntry,
	h registration.Health) error {
	o, err := s.get(ctx, object.WorkloadEntry, e.Key)
	if err != nil {
		return err
	}
	if o == nil || entryOf(o).Connection != e.Connection {
		return registration.ErrConflict
	}
	at := h.ReportedAt.UTC().Format(time.RFC3339Nano)
	next := istioCondition{Type: model.HealthCondition, Status: "True", LastProbeTime: at,
		LastTransitionTime: at}
	if !h.Healthy {
		next.Status, next.Message = "False", h.Message
	}
	all := o.conditions()
	if i := slices.IndexFunc(all, isHealth); i >= 0 {
		all[i] = next
	} else {
		all = append(all, next)
	}
	return s.patch(ctx, e.Key, map[string]any{
		"metadata": map[string]any{"resourceVersion": o.ResourceVersion},
		"status":   map[string]any{"conditions": all}}, "status")
}

func isHealth(c istioCondition) bool { return c.Type == model.HealthCondition }

// Delete implements registration.Store.
func (s *EntryStore) Delete(ctx context.Context, e *registration.WorkloadEntry) error {
	client, resource, err := s.client(ctx, object.WorkloadEntry)
	if err != nil {
		return err
	}
	body, err := json.Marshal(metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{
		APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions: &metav1.Preconditions{ResourceVersion: &e.Version}})
	if err != nil {
		return err
	}
	return s.failure(at(client.Delete(), resource, e.Key).Body(body).Do(ctx).Error())
}

// entryOf returns a WorkloadEntry as a registration.WorkloadEntry.
func entryOf(o *istioObject) *registration.WorkloadEntry {
	e := &registration.WorkloadEntry{Key: registration.Key{Namespace: o.Namespace, Name: o.Name},
		Version: o.ResourceVersion, Group: o.Annotations[registration.GroupAnnotation]}
	var spec struct{ ServiceAccount string }
	if json.Unmarshal(o.Spec, &spec) == nil {
		e.ServiceAccount = spec.ServiceAccount
	}
	at := func(name string) time.Time {
		t, err := time.Parse(time.RFC3339Nano, o.Annotations[name])
		if err != nil {
			return time.Time{}
		}
		return t.UTC()
	}
	e.Connection = registration.Connection{
		Controller:     o.Annotations[registration.ControllerAnnotation],
		ConnectedAt:    at(registration.ConnectedAnnotation),
		DisconnectedAt: at(registration.DisconnectedAnnotation)}
	all := o.conditions()
	if i := slices.IndexFunc(all, isHealth); i >= 0 {
		e.Health = &registration.Health{Healthy: all[i].Status == "True", Message: all[i].Message}
		e.Health.ReportedAt, _ = time.Parse(time.RFC3339Nano, all[i].LastProbeTime)
	}
	return e
}
