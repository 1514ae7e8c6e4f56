package relay

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"github.com/google/go-containerregistry/pkg/registry"
	image "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/protobuf/types/known/durationpb"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry/remote"

	"outrider.org/outrider/scripts/parts"
)

// Media types of image manifests.
const (
	ociManifest    = "application/vnd.oci.image.manifest.v1+json"
	ociIndex       = "application/vnd.oci.image.index.v1+json"
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
)

// newRegistry starts an image registry. All its requests pass through guard, unless that is nil.
func newRegistry(t *testing.T, guard func(http.Handler) http.Handler) *images {
	t.Helper()
	handler := registry.New(registry.Logger(stdlog.New(io.Discard, "", 0)))
	open := httptest.NewServer(handler)
	t.Cleanup(open.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	i := &images{t: t, to: strings.TrimPrefix(open.URL, "http://"),
		Host: open.Listener.Addr().String()}
	if guard != nil {
		guarded := httptest.NewServer(guard(handler))
		t.Cleanup(guarded.Close)
		i.Host = guarded.Listener.Addr().String()
	}
	return i
}

// images is a registry to which tests push images.
type images struct {
	Host string // host:port from which images are fetched
	t    *testing.T
	to   string // host:port to which images are pushed without credentials
}

// layer is a layer of a test image.
type layer struct{ mediaType, content string }

// push pushes an image to the registry and returns its descriptor.
func (i *images) push(name, manifestType string, layers ...layer) image.Descriptor {
	i.t.Helper()
	manifest := map[string]any{"schemaVersion": 2, "mediaType": manifestType,
		"config": i.blob(name, layer{"application/vnd.oci.image.config.v1+json", "{}"})}
	pushed := []image.Descriptor{}
	for _, one := range layers {
		pushed = append(pushed, i.blob(name, one))
	}
	manifest["layers"] = pushed
	return i.manifest(name, manifestType, manifest)
}

func (i *images) blob(name string, of layer) image.Descriptor {
	i.t.Helper()
	d := content.NewDescriptorFromBytes(of.mediaType, []byte(of.content))
	if err := i.repository(name).Push(i.t.Context(), d, strings.NewReader(of.content)); err != nil {
		i.t.Fatal(err)
	}
	return d
}

func (i *images) manifest(name, mediaType string, manifest any) image.Descriptor {
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

func (i *images) repository(name string) *remote.Repository {
	i.t.Helper()
	repository, err := remote.NewRepository(i.to + "/" + name)
	if err != nil {
		i.t.Fatal(err)
	}
	repository.PlainHTTP, repository.Client = true, http.DefaultClient
	return repository
}

// archived returns a compressed archive whose files all have the same content.
func archived(t *testing.T, content string, names ...string) string {
	t.Helper()
	var out bytes.Buffer
	zipped, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewWriter(zipped)
	for _, name := range names {
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o600,
			Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(archive, content); err != nil {
			t.Fatal(err)
		}
	}
	for _, closing := range []io.Closer{archive, zipped} {
		if err := closing.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return out.String()
}

// sparse returns a compressed archive in a format of GNU tar, with a module that is one large hole.
func sparse(t *testing.T, format string) string {
	t.Helper()
	folder := t.TempDir()
	module := filepath.Join(folder, moduleName)
	if err := errors.Join(os.WriteFile(module, nil, 0o600),
		os.Truncate(module, maxModuleBytes+1)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "tar", "-czS", "--format="+format, "-C", folder,
		moduleName).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// remoteVM returns the VM configuration of a Wasm filter with a remote module.
func remoteVM(from, sum, secret string) *wasmv3.VmConfig {
	return &wasmv3.VmConfig{
		EnvironmentVariables: &wasmv3.EnvironmentVariables{
			KeyValues: map[string]string{pullSecret: secret}},
		Code: &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{
			Remote: &corev3.RemoteDataSource{Sha256: sum, HttpUri: &corev3.HttpUri{Uri: from,
				// time-out of one attempt to fetch the module
				Timeout: durationpb.New(firstModulePause / 2)}}}},
	}
}

func TestImage_ModulesByIstiosRules(t *testing.T) {
	i := newRegistry(t, nil)
	raw := layer{moduleTypes[0], emptyModule}
	zipped := archived(t, emptyModule, "./readme", "./plugin.wasm")
	oci := i.push("p/oci:v1", ociManifest, layer{"application/vnd.module.wasm.config.v1+json", "{}"},
		raw)
	plain := i.push("p/plain:latest", ociManifest, layer{moduleTypes[1], emptyModule})
	i.push("p/compat:v1", ociManifest, layer{archiveTypes[0], archived(t, "old", "plugin.wasm")},
		layer{archiveTypes[0], zipped})
	i.push("p/docker:v1", dockerManifest, layer{archiveTypes[1], zipped})
	i.push("p/index:amd64", ociManifest, raw)
	attestation := i.push("p/index:other", ociManifest, layer{"application/vnd.in-toto+json", "{}"})
	attestation.Platform = &image.Platform{OS: "unknown", Architecture: "unknown"}
	module := i.push("p/index:module", ociManifest, raw, layer{"application/x", ""})
	module.Platform = &image.Platform{OS: "wasi", Architecture: "wasm"}
	index := i.manifest("p/index:v1", ociIndex, map[string]any{"schemaVersion": 2,
		"mediaType": ociIndex, "manifests": []image.Descriptor{attestation, module}})
	i.push("p/empty:v1", ociManifest, layer{archiveTypes[0], archived(t, "x", "other.wasm")})
	i.push("p/text:v1", ociManifest, layer{moduleTypes[0], "text"})
	i.push("p/unknown:v1", ociManifest, layer{"application/x", emptyModule})
	i.push("p/none:v1", ociManifest)
	i.push("p/torn:v1", ociManifest, layer{archiveTypes[0], zipped[:len(zipped)/2]})
	i.push("p/bomb:v1", ociManifest,
		layer{archiveTypes[0],
			archived(t, strings.Repeat("\x00", maxModuleBytes/2+1), "a", "plugin.wasm")})
	i.push("p/sparse:v1", ociManifest, layer{archiveTypes[0], sparse(t, "posix")})
	i.push("p/oldsparse:v1", ociManifest, layer{archiveTypes[0], sparse(t, "gnu")})

	zeros := strings.Repeat("0", 64)
	for from, want := range map[string]struct{ sum, err string }{
		"p/oci:v1":                         {},
		"p/oci:v1@" + oci.Digest.String():  {sum: oci.Digest.Encoded()},
		"p/oci@" + oci.Digest.String():     {sum: zeros, err: "not have the SHA-256 0"},
		"p/oci@sha256:" + zeros:            {err: "not found"},
		"p/plain":                          {sum: strings.ToUpper(plain.Digest.Encoded())},
		"p/compat:v1":                      {sum: "nil"},
		"p/docker:v1":                      {},
		"p/index:v1":                       {sum: index.Digest.Encoded()},
		"p/index@" + index.Digest.String(): {sum: module.Digest.Encoded()},
		"p/index:other":                    {err: "no layer with a Wasm module"},
		"p/empty:v1":                       {err: "no whole plugin.wasm"},
		"p/text:v1":                        {err: "is not a Wasm module"},
		"p/unknown:v1":                     {err: "no layer with a Wasm module"},
		"p/none:v1":                        {err: "no layer with a Wasm module"},
		"p/torn:v1":                        {err: "unexpected EOF"},
		"p/bomb:v1":                        {err: "no whole plugin.wasm in the first 64 MB"},
		"p/sparse:v1":                      {err: "plugin.wasm has more than 64 MB"},
		"p/oldsparse:v1":                   {err: "no whole plugin.wasm"},
		"p/missing:v1":                     {err: "not found"},
		"p/oci:v1?x=y":                     {err: "invalid"},
	} {
		t.Run(from, func(t *testing.T) {
			vm := remoteVM("oci://"+i.Host+"/"+from, want.sum, "")
			var code []byte
			var err error
			// a busy machine may need more than one attempt
			parts.Poll(20*time.Second, func() bool {
				m := New(Options{Logger: slog.New(slog.DiscardHandler)}).modules
				m.local = true
				code, err = m.module(t.Context(), vm)
				return err == nil || !strings.Contains(err.Error(), "deadline exceeded")
			})
			switch {
			case want.err == "" && (err != nil || string(code) != emptyModule):
				t.Errorf("%d bytes, %v", len(code), err)
			case want.err != "" && (err == nil || !strings.Contains(err.Error(), want.err)):
				t.Errorf("got %v, want %s", err, want.err)
			}
		})
	}
}

// dockerConfig returns the content of a pull secret.
func dockerConfig(host, user, password string) string {
	return fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, host,
		base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
}

func TestImage_PullSecrets(t *testing.T) {
	const user, password, token = "user", "secret", "a-token"
	basic := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if u, p, _ := r.BasicAuth(); u != user || p != password {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	// bearer protects a registry with tokens. If anonymous is set, anyone can get a token.
	bearer := func(anonymous bool) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				u, p, _ := r.BasicAuth()
				switch {
				case r.URL.Path == "/token" && (anonymous || u == user && p == password) &&
					r.FormValue("scope") == "repository:p/oci:pull":
					_, _ = fmt.Fprintf(w, `{"token": %q}`, token)
				case r.URL.Path == "/token":
					w.WriteHeader(http.StatusForbidden)
				case r.Header.Get("Authorization") != "Bearer "+token:
					w.Header().Set("WWW-Authenticate", fmt.Sprintf(
						`Bearer realm="http://%s/token",service="test"`, r.Host))
					w.WriteHeader(http.StatusUnauthorized)
				default:
					next.ServeHTTP(w, r)
				}
			})
		}
	}
	for name, c := range map[string]struct {
		guard                func(http.Handler) http.Handler
		user, password, host string // credentials of the pull secret; host "": that of the registry
		err                  string
	}{
		"basic":             {basic, user, password, "", ""},
		"wrong":             {basic, user, "other", "", "401"},
		"other registry":    {basic, user, password, "registry.test", "basic credential not found"},
		"bearer":            {bearer(false), user, password, "", ""},
		"bearer, wrong":     {bearer(false), user, "other", "", "403"},
		"bearer, anonymous": {bearer(true), user, "", "registry.test", ""},
	} {
		t.Run(name, func(t *testing.T) {
			i := newRegistry(t, c.guard)
			i.push("p/oci:v1", ociManifest, layer{moduleTypes[0], emptyModule})
			if c.host == "" {
				c.host = i.Host
			}
			var output strings.Builder
			m := New(Options{Logger: slog.New(slog.NewTextHandler(&output, nil))}).modules
			m.local = true
			_, err := m.module(t.Context(), remoteVM("oci://"+i.Host+"/p/oci:v1", "",
				dockerConfig(c.host, c.user, c.password)))
			if fmt.Sprint(err) == c.err || err != nil && (c.err == "" ||
				!strings.Contains(err.Error(), c.err)) || err == nil && c.err != "" {
				t.Errorf("got %v, want %q", err, c.err)
			}
			if text := fmt.Sprint(output.String(), err); strings.Contains(text, password) {
				t.Errorf("the password is in %s", text)
			}
		})
	}
	m := New(Options{Logger: slog.New(slog.DiscardHandler)}).modules
	m.local = true
	if _, err := m.module(t.Context(), remoteVM("oci://127.0.0.1:1/p", "", "no JSON")); err == nil ||
		!strings.Contains(err.Error(), "image pull secret") {
		t.Errorf("an invalid pull secret: %v", err)
	}
}
