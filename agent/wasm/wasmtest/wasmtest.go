// Package wasmtest provides an image registry and small Wasm modules for tests.
package wasmtest

import (
	"bytes"
	"encoding/json"
	"io"
	stdlog "log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	image "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry/remote"
)

// ModuleType is the media type of an image layer that contains a Wasm module.
const ModuleType = "application/vnd.module.wasm.content.layer.v1+wasm"

// EmptyModule is a Wasm module for Envoy that has no effect. It exports a memory, malloc and the
// version of the proxy-wasm ABI.
const EmptyModule = "\x00asm\x01\x00\x00\x00" +
	"\x01\x09\x02\x60\x00\x00\x60\x01\x7f\x01\x7f" + // function types () and (i32) i32
	"\x03\x03\x02\x00\x01" + "\x05\x03\x01\x00\x01" + // two functions, and one page of memory
	"\x07\x2d\x03\x06memory\x02\x00\x17proxy_abi_version_0_2_1\x00\x00\x06malloc\x00\x01" +
	"\x0a\x0a\x02\x02\x00\x0b\x05\x00\x41\x80\x08\x0b"

// Media types of image manifests.
const (
	OCIManifest    = "application/vnd.oci.image.manifest.v1+json"
	OCIIndex       = "application/vnd.oci.image.index.v1+json"
	DockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
)

// NewRegistry starts an image registry. If guard is not nil, requests to Registry.Host pass through
// it.
func NewRegistry(t *testing.T, guard func(http.Handler) http.Handler) *Registry {
	t.Helper()
	handler := registry.New(registry.Logger(stdlog.New(io.Discard, "", 0)))
	open := httptest.NewServer(handler)
	t.Cleanup(open.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	i := &Registry{t: t, to: strings.TrimPrefix(open.URL, "http://"),
		Host: open.Listener.Addr().String()}
	if guard != nil {
		guarded := httptest.NewServer(guard(handler))
		t.Cleanup(guarded.Close)
		i.Host = guarded.Listener.Addr().String()
	}
	return i
}

// Registry is a registry to which tests push images.
type Registry struct {
	Host string // host:port from which Wasm images are fetched
	t    *testing.T
	to   string // host:port to which tests push images, without passing guard
}

// Layer is a layer of an image.
type Layer struct{ MediaType, Content string }

// Push pushes an image to the registry and returns its descriptor.
func (i *Registry) Push(name, manifestType string, layers ...Layer) image.Descriptor {
	i.t.Helper()
	manifest := map[string]any{"schemaVersion": 2, "mediaType": manifestType,
		"config": i.blob(name, Layer{"application/vnd.oci.image.config.v1+json", "{}"})}
	pushed := []image.Descriptor{}
	for _, one := range layers {
		pushed = append(pushed, i.blob(name, one))
	}
	manifest["layers"] = pushed
	return i.PushManifest(name, manifestType, manifest)
}

func (i *Registry) blob(name string, of Layer) image.Descriptor {
	i.t.Helper()
	d := content.NewDescriptorFromBytes(of.MediaType, []byte(of.Content))
	if err := i.repository(name).Push(i.t.Context(), d, strings.NewReader(of.Content)); err != nil {
		i.t.Fatal(err)
	}
	return d
}

// PushManifest pushes a manifest under a name and returns its descriptor.
func (i *Registry) PushManifest(name, mediaType string, manifest any) image.Descriptor {
	i.t.Helper()
	text, err := json.Marshal(manifest)
	if err != nil {
		i.t.Fatal(err)
	}
	d := content.NewDescriptorFromBytes(mediaType, text)
	repository := i.repository(name)
	if err := repository.PushReference(i.t.Context(), d, bytes.NewReader(text),
		repository.Reference.Reference); err != nil {
		i.t.Fatal(err)
	}
	return d
}

func (i *Registry) repository(name string) *remote.Repository {
	i.t.Helper()
	repository, err := remote.NewRepository(i.to + "/" + name)
	if err != nil {
		i.t.Fatal(err)
	}
	repository.PlainHTTP, repository.Client = true, http.DefaultClient
	return repository
}
