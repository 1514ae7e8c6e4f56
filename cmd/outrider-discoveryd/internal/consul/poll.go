package consul

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/consul/api"

	"outrider.org/outrider/agent/backoff"
)

// pollInterval is the minimum interval between the starts of two queries of a poll.
const pollInterval = 50 * time.Millisecond

// answer is a response to a blocking query, sent only if it differs from the previous one.
type answer[T any] struct {
	value T
	again bool // first response, or the first after an error
	// the index has decreased, because Consul was restarted with older data or restored
	lost     bool
	filtered bool // Consul omitted data that the token may not read
}

// poll repeats a blocking query until the context ends, and sends changed responses to answers. It
// records the results in the watcher's health; what is the name of the query.
func poll[T any](ctx context.Context, w *watcher, what string, answers chan<- answer[T],
	query func(*api.QueryOptions) (T, *api.QueryMeta, error)) {
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second, Jitter: 0.2}
	var index, newest uint64 // a query with index 0 does not block
	for ctx.Err() == nil {
		begun := time.Now()
		value, meta, err := send(ctx, w, index, query)
		if ctx.Err() != nil {
			return
		}
		if w.health.record(what, err); err != nil {
			index = 0
			_ = pause.Wait(ctx) // an error means that ctx has ended, which the loop checks
			continue
		}
		pause.Reset()
		next := max(meta.LastIndex, 1)
		if next != index {
			found := answer[T]{value: value, again: index == 0, lost: next < newest,
				filtered: meta.ResultsFilteredByACLs}
			select {
			case answers <- found:
			case <-ctx.Done():
			}
		}
		index, newest = next, next
		// an error means that ctx has ended, which the loop checks
		_ = backoff.Sleep(ctx, pollInterval-time.Since(begun))
	}
}

// send sends one query. A response from a server without a leader is an error, because it may be
// outdated.
func send[T any](ctx context.Context, w *watcher, index uint64,
	query func(*api.QueryOptions) (T, *api.QueryMeta, error)) (T, *api.QueryMeta, error) {
	timeout := w.registry.client.timeout
	if index > 0 {
		timeout += blockTime * 17 / 16
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var none T
	options, err := w.registry.client.options(ctx, w.datacenter, index)
	if err != nil {
		return none, nil, err
	}
	value, meta, err := query(options)
	if err != nil {
		return none, nil, explain(err)
	}
	if !meta.KnownLeader {
		return none, nil, errors.New("consul has no leader: its answer may be stale")
	}
	return value, meta, nil
}
