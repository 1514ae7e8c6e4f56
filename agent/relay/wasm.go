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
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	netrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	netwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"golang.org/x/sync/errgroup"
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
	refetch time.Duration      // pause before missing modules are requested again
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
	maxFetches    = 4 // concurrent fetches for a response
	maxKnownBytes = 128 << 20
	// maximum size of all modules in a response; smaller than maxResponseBytes
	maxExtensionBytes = 240 << 20
	// time-out of fetching one module, unless the resource has a shorter one
	moduleTime       = 30 * time.Second
	moduleAttempts   = 5
	firstModulePause = 500 * time.Millisecond
	// pauses before the upstream server is asked again for extensions whose modules are missing
	firstRefetch = time.Minute
	lastRefetch  = 10 * time.Minute
	// prefix of environment variables that istiod adds for the agent
	internalVariables = "ISTIO_META_"
	pullSecret        = internalVariables + "WASM_IMAGE_PULL_SECRET"
)

// inline replaces the remote modules in a response by their content. It reports whether the
// response had remote modules. failed has the names of extensions whose modules are missing, each
// with an encoded configuration that denies everything; nil if the extension fails open.
func (m *modules) inline(ctx context.Context, r *response) (changed bool,
	failed map[string][]byte, err error) {
	bodies, errs := make([][]byte, len(r.resources)), make([]error, len(r.resources))
	var total atomic.Int64
	var all errgroup.Group
	all.SetLimit(maxFetches)
	for i, one := range r.resources {
		all.Go(func() error {
			bodies[i], errs[i] = m.resource(ctx, one.body)
			if errs[i] == nil && total.Add(int64(len(bodies[i]))) > maxExtensionBytes {
				bodies[i], errs[i] = nil, fmt.Errorf("the extensions of a response have more than %d "+
					"MB with their Wasm modules", maxExtensionBytes>>20)
			}
			return nil
		})
	}
	_ = all.Wait() // always nil
	failed = map[string][]byte{}
	for i, one := range r.resources {
		switch {
		case errs[i] != nil:
			failed[one.name] = bodies[i]
			failure := fmt.Errorf("extension %s: %w", one.name, errs[i])
			if err != nil {
				failure = fmt.Errorf("%w; %w", err, failure)
			}
			err = failure
		case !bytes.Equal(bodies[i], one.body):
			sum := sha256.Sum256(one.body)
			r.resources[i].body, r.resources[i].source, changed = bodies[i], sum[:], true
		}
	}
	return changed, failed, err
}

// resource returns an encoded extension configuration in which the module is included. With an
// error, it returns one that denies everything, or nil if the extension fails open.
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
	plugin := pluginOf(filter)
	vm := plugin.GetVmConfig()
	if vm.GetCode().GetRemote() == nil {
		return body, nil
	}
	code, err := m.module(ctx, vm)
	if err != nil {
		err = errors.New(wasm.RedactURL(err.Error()))
		//nolint:staticcheck // older istiods send the deprecated field
		if plugin.GetFailOpen() || plugin.GetFailurePolicy() == wasmv3.FailurePolicy_FAIL_OPEN {
			return nil, err
		}
		denying, failed := encodeExtension(&extension, denialOf(filter))
		return denying, errors.Join(err, failed)
	}
	vm.Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{
		Local: &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: code}}}}
	maps.DeleteFunc(vm.GetEnvironmentVariables().GetKeyValues(), func(name, _ string) bool {
		return strings.HasPrefix(name, internalVariables)
	})
	if body, err = encodeExtension(&extension, filter); err != nil {
		return nil, err
	}
	m.add(key, body)
	return body, nil
}

// encodeExtension returns the encoded Any of an extension whose filter is replaced.
func encodeExtension(extension *corev3.TypedExtensionConfig, filter proto.Message) ([]byte, error) {
	var packed anypb.Any
	if err := extension.TypedConfig.MarshalFrom(filter); err != nil {
		return nil, fmt.Errorf("encode the filter: %w", err)
	}
	if err := packed.MarshalFrom(extension); err != nil {
		return nil, fmt.Errorf("encode the extension: %w", err)
	}
	body, err := proto.Marshal(&packed)
	if err != nil {
		return nil, fmt.Errorf("encode the extension: %w", err)
	}
	return body, nil
}

// denialOf returns a filter that denies everything in place of a Wasm filter.
func denialOf(filter proto.Message) proto.Message {
	rules := &rbacv3.RBAC{Action: rbacv3.RBAC_ALLOW}
	if _, ok := filter.(*netwasmv3.Wasm); ok {
		return &netrbacv3.RBAC{Rules: rules, StatPrefix: "missing_module"}
	}
	return &httprbacv3.RBAC{Rules: rules}
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

// pluginOf returns the configuration of a Wasm filter, nil for other filters.
func pluginOf(filter proto.Message) *wasmv3.PluginConfig {
	switch f := filter.(type) {
	case *httpwasmv3.Wasm:
		return f.GetConfig()
	case *netwasmv3.Wasm:
		return f.GetConfig()
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
