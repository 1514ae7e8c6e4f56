package consul

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/consul/api"

	"outrider.org/outrider/agent/backoff"
)

// pollInterval is the minimum interval between two queries.
const pollInterval = 50 * time.Millisecond

// answer is an answer of a blocking query that differs from the last one.
type answer[T any] struct {
	value    T
	again    bool // first response, or the first after an error
	lost     bool // Consul's data is older than before, because Consul was restarted or restored
	filtered bool // the token may not read all data
}

// poll repeats a blocking query until the context ends, and sends changed responses to a channel.
// what is the query's name in health.
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
			_ = pause.Wait(ctx) // the loop checks ctx
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
		_ = backoff.Sleep(ctx, pollInterval-time.Since(begun)) // the loop checks ctx
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
		return none, nil, errors.New("consul has no leader: its answer may be outdated")
	}
	return value, meta, nil
}
