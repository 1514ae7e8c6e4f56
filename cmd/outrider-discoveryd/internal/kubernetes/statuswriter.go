package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"outrider.org/outrider/agent/backoff"
)

const (
	writesPerSecond = 10
	writeTime       = 30 * time.Second
	pauseAfterError = time.Second
	pauseAtMost     = time.Minute
)

// statusWriter writes the verdict for each object to the object's status, once for each generation
// and verdict. If another program changes the condition, it does not write again: two servers that
// disagree would overwrite each other endlessly.
type statusWriter struct {
	connection *connection
	limit      flowcontrol.RateLimiter
	wake       chan struct{}

	mu      sync.Mutex
	objects map[string]*objectStatus // by the path of the object's input
	due     map[string]struct{}
	err     error // error of the last write; nil: it succeeded
}

func newStatusWriter(at *connection) *statusWriter {
	return &statusWriter{connection: at, wake: make(chan struct{}, 1),
		limit:   flowcontrol.NewTokenBucketRateLimiter(writesPerSecond, writesPerSecond),
		objects: map[string]*objectStatus{}, due: map[string]struct{}{}}
}

func (w *statusWriter) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run writes statuses until ctx ends.
func (w *statusWriter) run(ctx context.Context) {
	pauses := backoff.Backoff{Min: pauseAfterError, Max: pauseAtMost, Jitter: 0.5}
	for {
		path, s, ok := w.next()
		if !ok {
			select {
			case <-ctx.Done():
				return
			case <-w.wake:
				continue
			}
		}
		if w.limit.Wait(ctx) != nil {
			return
		}
		err := w.write(ctx, s)
		w.done(path, s, err)
		if err == nil {
			pauses.Reset()
		} else if pauses.Wait(ctx) != nil {
			return
		}
	}
}

// next returns an object whose status must be written.
func (w *statusWriter) next() (path string, s objectStatus, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for path := range w.due {
		if s := w.objects[path]; s.want != s.has && s.want.generation == s.generation {
			return path, *s, true
		}
		delete(w.due, path) // another server has written the verdict, or the object has changed
	}
	return "", objectStatus{}, false
}

// done records the result of a write. If the write failed, or the verdict has changed meanwhile,
// the object remains scheduled.
func (w *statusWriter) done(path string, written objectStatus, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	if now := w.objects[path]; err == nil && (now == nil || now.want == written.want) {
		delete(w.due, path)
	}
}

// problem returns the reason why statuses cannot be written; "": none.
func (w *statusWriter) problem() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil || len(w.due) == 0 {
		return ""
	}
	return fmt.Sprintf("cannot write the status of %d objects: %v", len(w.due), w.err)
}

// write writes a verdict to an object's status. It does nothing if the object was removed, if it
// has another generation, or if its status already has the verdict.
func (w *statusWriter) write(ctx context.Context, s objectStatus) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	resource, ok, err := w.connection.served(ctx, s.kind)
	if err != nil || !ok {
		return err
	}
	client, err := w.connection.client(resource.GroupVersion())
	if err != nil {
		return err
	}
	at := func(r *rest.Request) *rest.Request {
		return r.Namespace(s.namespace).Resource(resource.Resource).Name(s.name)
	}
	found, err := at(client.Get()).Do(ctx).Get()
	if err != nil {
		return ignoreGone(err)
	}
	o := found.(*istioObject)
	others, own := o.splitConditions()
	if o.Generation != s.want.generation || verdictOf(own) == s.want {
		return nil
	}
	next := istioCondition{Type: conditionType, Status: s.want.status, Reason: s.want.reason,
		Message: s.want.message, LastTransitionTime: own.LastTransitionTime,
		ObservedGeneration: strconv.AppendInt(nil, s.want.generation, 10)}
	if own.Status != next.Status {
		next.LastTransitionTime = time.Now().UTC().Format(time.RFC3339)
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": metav1.ObjectMeta{ResourceVersion: o.ResourceVersion},
		"status":   map[string]any{"conditions": append(others, next)}})
	if err != nil {
		return err
	}
	err = at(client.Patch(types.MergePatchType)).SubResource("status").Body(patch).Do(ctx).Error()
	return ignoreGone(err)
}

// ignoreGone returns nil for the error that an object does not exist, and err otherwise.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
