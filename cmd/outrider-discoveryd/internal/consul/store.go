package consul

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/cmd/outrider-discoveryd/internal/registration"
)

// maxRequest is the maximum size in bytes of a transaction that writes a WorkloadEntry and its
// service instances. Consul accepts 512 KiB (txn_max_req_len).
const maxRequest = 500 << 10

// Store stores registered workloads in the first datacentre of a registry. One transaction writes a
// workload's WorkloadEntry to the key/value store, and its node with service instances to the
// catalogue. Outrider reads only the key/value store; the catalogue serves other programs. Store
// implements registration.Store.
type Store struct {
	registry *Registry
	groups   func(namespace, name string) *networking.WorkloadGroup
}

var _ registration.Store = (*Store)(nil)

// NewStore returns a store that uses a running registry. groups returns a WorkloadGroup by
// namespace and name; nil if it does not exist.
func NewStore(registry *Registry,
	groups func(namespace, name string) *networking.WorkloadGroup) *Store {
	return &Store{registry: registry, groups: groups}
}

func (s *Store) watcher() *watcher { return s.registry.watchers[0] }

// Run only waits until ctx ends: the registry reads the entries.
func (s *Store) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Group returns a WorkloadGroup.
func (s *Store) Group(_ context.Context, key registration.Key) (*registration.WorkloadGroup,
	error) {
	spec := s.groups(key.Namespace, key.Name)
	if spec == nil {
		return nil, nil
	}
	return &registration.WorkloadGroup{Key: key, Spec: spec}, nil
}

// Entries returns all registered workloads, or an error while they cannot be read.
func (s *Store) Entries() ([]*registration.WorkloadEntry, error) {
	if err := s.watcher().health.failure(ofWorkloads); err != nil {
		return nil, err
	}
	entries, _ := s.watcher().workloads.all()
	if entries == nil {
		return nil, errors.New("cannot list the workloads in Consul: they were not read yet, or " +
			"the token may not read all of them")
	}
	return entries, nil
}

// Get reads an entry from Consul, not from the last list; nil: it does not exist.
func (s *Store) Get(ctx context.Context, key registration.Key) (*registration.WorkloadEntry,
	error) {
	w, index, err := s.read(ctx, key)
	if w == nil || err != nil {
		return nil, err
	}
	return w.entry(index), nil
}

// Create writes the entry of a workload. It returns registration.ErrConflict if the entry exists.
func (s *Store) Create(ctx context.Context, of *registration.Workload,
	c registration.Connection) error {
	return s.write(ctx, newWorkload(of, c), 0)
}

// SetConnection replaces the connection of an entry.
func (s *Store) SetConnection(ctx context.Context, e *registration.WorkloadEntry,
	c registration.Connection) error {
	return s.change(ctx, e.Key, func(now *registration.WorkloadEntry) bool {
		return now.Version == e.Version
	}, func(w *workload) { w.connect(c) })
}

// SetHealth replaces the health of an entry.
func (s *Store) SetHealth(ctx context.Context, e *registration.WorkloadEntry,
	h registration.Health) error {
	return s.change(ctx, e.Key, func(now *registration.WorkloadEntry) bool {
		return now.Controller == e.Controller && now.ConnectedAt.Equal(e.ConnectedAt)
	}, func(w *workload) { w.setHealth(h) })
}

// change reads an entry, changes it and writes it. It returns registration.ErrConflict if matches
// returns false for the entry, or if the entry changes meanwhile.
func (s *Store) change(ctx context.Context, key registration.Key,
	matches func(*registration.WorkloadEntry) bool, change func(*workload)) error {
	w, index, err := s.read(ctx, key)
	if err != nil {
		return err
	}
	if w == nil || !matches(w.entry(index)) {
		return registration.ErrConflict
	}
	change(w)
	return s.write(ctx, w, index)
}

// Delete removes an entry from the key/value store, and its node with all service instances from
// the catalogue.
func (s *Store) Delete(ctx context.Context, e *registration.WorkloadEntry) error {
	index, err := strconv.ParseUint(e.Version, 10, 64)
	if err != nil {
		return fmt.Errorf("parse version %q of %s: %w", e.Version, e.Key, err)
	}
	w := &workload{}
	w.name(e.Key)
	return s.apply(ctx, api.TxnOps{
		{KV: &api.KVTxnOp{Verb: api.KVDeleteCAS, Key: keyOf(e.Key), Index: index}},
		{Node: &api.NodeTxnOp{Verb: api.NodeDelete, Node: api.Node{Node: w.nodeName()}}}})
}

// RenewLease renews the lease of a server instance: it writes the instance's key, whose ModifyIndex
// other servers observe. The time in its value is for operators only.
func (s *Store) RenewLease(ctx context.Context, instance string, duration time.Duration) error {
	text := fmt.Sprintf(`{"renewed": %q, "duration": %q}`, formatTime(time.Now()), duration)
	return s.apply(ctx, api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVSet, Key: serverKeys + instance,
		Value: []byte(text)}}})
}

// LeaseVersions returns, for each server instance with a lease, a text that changes with each
// renewal.
func (s *Store) LeaseVersions(ctx context.Context) (map[string]string, error) {
	pairs, _, err := send(ctx, s.watcher(), 0,
		func(o *api.QueryOptions) (api.KVPairs, *api.QueryMeta, error) {
			return s.registry.client.api.KV().List(serverKeys, o)
		})
	if err != nil {
		return nil, err
	}
	all := make(map[string]string, len(pairs))
	for _, pair := range pairs {
		all[strings.TrimPrefix(pair.Key, serverKeys)] = fmt.Sprint(pair.ModifyIndex)
	}
	return all, nil
}

// ReleaseLease removes the lease of a server instance.
func (s *Store) ReleaseLease(ctx context.Context, instance string) error {
	return s.apply(ctx, api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVDelete,
		Key: serverKeys + instance}}})
}

func keyOf(key registration.Key) string {
	return workloadKeys + key.Namespace + "/" + key.Name
}

// read returns the current state of an entry and its ModifyIndex; nil if the entry does not exist.
func (s *Store) read(ctx context.Context, key registration.Key) (*workload, uint64, error) {
	pair, _, err := send(ctx, s.watcher(), 0,
		func(o *api.QueryOptions) (*api.KVPair, *api.QueryMeta, error) {
			o.RequireConsistent = true
			return s.registry.client.api.KV().Get(keyOf(key), o)
		})
	if pair == nil || err != nil {
		return nil, 0, err
	}
	w, err := parseWorkload(pair)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %s in Consul: %w", registration.ErrInvalid, pair.Key, err)
	}
	return w, pair.ModifyIndex, nil
}

// write writes an entry, and its node with service instances. It returns registration.ErrConflict
// if the ModifyIndex of the entry is not index, or if index is 0 and the entry exists.
func (s *Store) write(ctx context.Context, w *workload, index uint64) error {
	text, err := json.Marshal(w)
	if err == nil {
		_, err = parseWorkload(&api.KVPair{Key: keyOf(w.key()), Value: text})
	}
	ops := append(api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVCAS, Key: keyOf(w.key()), Value: text,
		Index: index}}}, w.operations()...)
	if request, _ := json.Marshal(ops); err == nil && len(request) > maxRequest {
		err = fmt.Errorf("the WorkloadEntry with its services has %d bytes, more than %d",
			len(request), maxRequest)
	}
	if err != nil {
		return fmt.Errorf("%w: WorkloadEntry %s: %w", registration.ErrInvalid, w.key(), err)
	}
	return s.apply(ctx, ops)
}

// apply applies operations in one transaction. The first one must be a compare-and-set in the
// key/value store: if its index is outdated, apply returns registration.ErrConflict.
func (s *Store) apply(ctx context.Context, ops api.TxnOps) error {
	client := s.registry.client
	ctx, cancel := context.WithTimeout(ctx, client.timeout)
	defer cancel()
	options, err := client.options(ctx, s.watcher().datacenter, 0)
	if err != nil {
		return err
	}
	ok, answer, _, err := client.api.Txn().Txn(ops, options)
	if ok || err != nil {
		return explain(err)
	}
	reason := "no reason"
	if len(answer.Errors) > 0 {
		first := answer.Errors[0]
		if first.OpIndex == 0 && strings.Contains(first.What, "index is stale") {
			return registration.ErrConflict
		}
		reason = first.What
	}
	return fmt.Errorf("consul refuses to write %s: %.200s", ops[0].KV.Key, reason)
}
