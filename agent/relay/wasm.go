package relay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	netwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"golang.org/x/sync/singleflight"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/agent/backoff"
	"outrider.org/outrider/agent/wasm"
)

// modules fetches the remote Wasm modules of extension configurations, and replaces each reference
// by the module's content. Then Envoy needs neither a cluster for the servers of modules nor access
// to a file, and the Cache stores the modules, too.
type modules struct {
	log     *slog.Logger
	client  wasm.Client
	pause   time.Duration      // pause between the first and the second attempt to fetch a module
	cache   *Cache             // cache, which may contain modules from before a restart; nil: none
	fetches singleflight.Group // running fetches by URL and pull secret

	mu sync.Mutex
	// extension configurations that contain their modules, by the hash of the resource that the
	// upstream server sent
	known map[[sha256.Size]byte][]byte
	bytes int // size of known in bytes
}

// Limits for fetching Wasm modules.
const (
	maxModules    = 16
	maxKnownBytes = 128 << 20
	// maximum size of all modules in a response; smaller than maxResponseBytes
	maxExtensionBytes = 240 << 20
	// time-out of fetching one module, unless the resource has a shorter one
	moduleTime       = 30 * time.Second
	moduleAttempts   = 5
	firstModulePause = 500 * time.Millisecond
	// prefix of environment variables that istiod adds for the agent
	internalVariables = "ISTIO_META_"
	pullSecret        = internalVariables + "WASM_IMAGE_PULL_SECRET"
)

// inline replaces the remote modules in a response by their content. It reports whether the
// response had remote modules.
func (m *modules) inline(ctx context.Context, r *response) (changed bool, err error) {
	total := 0
	for i, one := range r.resources {
		body, err := m.resource(ctx, one.body)
		if err != nil {
			return false, fmt.Errorf("extension %s: %w", one.name, err)
		}
		if total += len(body); total > maxExtensionBytes {
			return false, fmt.Errorf("the extensions of a response have more than %d MB with "+
				"their Wasm modules", maxExtensionBytes>>20)
		}
		if !bytes.Equal(body, one.body) {
			sum := sha256.Sum256(one.body)
			r.resources[i].body, r.resources[i].source, changed = body, sum[:], true
		}
	}
	return changed, nil
}

// resource returns an encoded extension configuration in which the module is included.
func (m *modules) resource(ctx context.Context, body []byte) ([]byte, error) {
	key := sha256.Sum256(body)
	m.mu.Lock()
	known := m.known[key]
	m.mu.Unlock()
	if known != nil {
		return known, nil
	}
	if known = m.cache.madeFrom(key[:]); known != nil {
		m.add(key, known)
		return known, nil
	}
	var packed anypb.Any
	var extension corev3.TypedExtensionConfig
	if proto.Unmarshal(body, &packed) != nil || packed.UnmarshalTo(&extension) != nil {
		return body, nil //nolint:nilerr // Envoy refuses it
	}
	filter, err := extension.GetTypedConfig().UnmarshalNew()
	if err != nil {
		return body, nil //nolint:nilerr // not a type of the agent
	}
	vm := vmOf(filter)
	if vm.GetCode().GetRemote() == nil {
		return body, nil
	}
	code, err := m.module(ctx, vm)
	if err != nil {
		return nil, errors.New(wasm.RedactURL(err.Error()))
	}
	vm.Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{
		Local: &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: code}}}}
	maps.DeleteFunc(vm.GetEnvironmentVariables().GetKeyValues(), func(name, _ string) bool {
		return strings.HasPrefix(name, internalVariables)
	})
	if err := extension.TypedConfig.MarshalFrom(filter); err != nil {
		return nil, fmt.Errorf("encode the filter: %w", err)
	}
	if err := packed.MarshalFrom(&extension); err != nil {
		return nil, fmt.Errorf("encode the extension: %w", err)
	}
	if body, err = proto.Marshal(&packed); err != nil {
		return nil, fmt.Errorf("encode the extension: %w", err)
	}
	m.add(key, body)
	return body, nil
}

func (m *modules) add(key [sha256.Size]byte, body []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes += len(body) - len(m.known[key])
	if len(m.known) >= maxModules || m.bytes > maxKnownBytes {
		clear(m.known)
		m.bytes = len(body)
	}
	m.known[key] = body
}

// vmOf returns the VM configuration of a Wasm filter, nil for other filters.
func vmOf(filter proto.Message) *wasmv3.VmConfig {
	switch f := filter.(type) {
	case *httpwasmv3.Wasm:
		return f.GetConfig().GetVmConfig()
	case *netwasmv3.Wasm:
		return f.GetConfig().GetVmConfig()
	}
	return nil
}

// module fetches the module of a VM and checks its hash. Concurrent calls for the same URL share
// one request, which continues when the first caller's ctx ends.
func (m *modules) module(ctx context.Context, vm *wasmv3.VmConfig) ([]byte, error) {
	remote := vm.GetCode().GetRemote()
	from, limit := remote.GetHttpUri().GetUri(), moduleTime
	if timeout := remote.GetHttpUri().GetTimeout().AsDuration(); timeout > 0 {
		limit = min(limit, timeout)
	}
	secret := vm.GetEnvironmentVariables().GetKeyValues()[pullSecret]
	if err := wasm.CheckURL(from); err != nil {
		return nil, err
	}
	want := remote.GetSha256()
	if want == "nil" { // istiod sends "nil" if no hash is configured
		want = ""
	}
	if strings.HasPrefix(from, "http://") && want == "" {
		m.log.Warn("Wasm module is fetched over http:// without a sha256 to verify it",
			"url", wasm.RedactURL(from))
	}
	done := m.fetches.DoChan(from+" "+secret, func() (any, error) {
		return m.inAttempts(context.WithoutCancel(ctx), limit,
			func(ctx context.Context) (wasm.Module, error) { return m.client.Fetch(ctx, from, secret) })
	})
	var found wasm.Module
	select {
	case fetched := <-done:
		if fetched.Err != nil {
			return nil, fmt.Errorf("Wasm module: %w", fetched.Err)
		}
		found, _ = fetched.Val.(wasm.Module)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	switch {
	case !found.HasSHA256(want):
		// The returned error is sent to the upstream server, which must not learn what the URL
		// serves. So only the log has the checksum.
		m.log.Warn("Wasm module does not match its configured sha256", "url", wasm.RedactURL(from),
			"sha256",
			strings.Join(found.SHA256Sums, ", "), "want", want)
		return nil, fmt.Errorf("Wasm module %s does not have the SHA-256 %s; its actual SHA-256 "+
			"is in the log",
			from, want)
	case !found.IsWasm():
		return nil, fmt.Errorf("%s is not a Wasm module", from)
	}
	return found.Code, nil
}

// inAttempts fetches a module. It repeats a failed attempt at growing intervals, until the limits
// of time or attempts are reached.
func (m *modules) inAttempts(
	ctx context.Context, limit time.Duration, fetch func(context.Context) (wasm.Module, error),
) (got wasm.Module, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	retries := backoff.Backoff{Min: m.pause, Max: limit}
	for attempt := 1; ; attempt++ {
		found, failed := fetch(ctx)
		if failed == nil {
			return found, nil
		}
		// return the error of an earlier attempt rather than the time-out of this one
		if err == nil || ctx.Err() == nil {
			err = failed
		}
		if attempt == moduleAttempts || retries.Wait(ctx) != nil {
			return got, err
		}
	}
}
