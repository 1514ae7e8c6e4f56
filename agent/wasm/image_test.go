package wasm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	image "github.com/opencontainers/image-spec/specs-go/v1"

	"outrider.org/outrider/agent/wasm/wasmtest"
)

// local fetches modules from this host, too.
var local = &Client{AllowsLocalAddress: func(string) bool { return true }}

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
		os.Truncate(module, MaxBytes+1)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "tar", "-czS", "--format="+format, "-C", folder,
		moduleName).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func layer(mediaType, content string) wasmtest.Layer {
	return wasmtest.Layer{MediaType: mediaType, Content: content}
}

func TestImage_ModulesByIstiosRules(t *testing.T) {
	const ociManifest = wasmtest.OCIManifest
	i := wasmtest.NewRegistry(t, nil)
	raw := layer(moduleTypes[0], wasmtest.EmptyModule)
	zipped := archived(t, wasmtest.EmptyModule, "./readme", "./plugin.wasm")
	oci := i.Push("p/oci:v1", ociManifest, layer("application/vnd.module.wasm.config.v1+json",
		"{}"), raw)
	plain := i.Push("p/plain:latest", ociManifest, layer(moduleTypes[1], wasmtest.EmptyModule))
	i.Push("p/compat:v1", ociManifest, layer(archiveTypes[0], archived(t, "old", "plugin.wasm")),
		layer(archiveTypes[0], zipped))
	i.Push("p/docker:v1", wasmtest.DockerManifest, layer(archiveTypes[1], zipped))
	i.Push("p/index:amd64", ociManifest, raw)
	attestation := i.Push("p/index:other", ociManifest,
		layer("application/vnd.in-toto+json", "{}"))
	attestation.Platform = &image.Platform{OS: "unknown", Architecture: "unknown"}
	module := i.Push("p/index:module", ociManifest, raw, layer("application/x", ""))
	module.Platform = &image.Platform{OS: "wasi", Architecture: "wasm"}
	index := i.PushManifest("p/index:v1", wasmtest.OCIIndex, map[string]any{"schemaVersion": 2,
		"mediaType": wasmtest.OCIIndex, "manifests": []image.Descriptor{attestation, module}})
	i.Push("p/empty:v1", ociManifest, layer(archiveTypes[0], archived(t, "x", "other.wasm")))
	i.Push("p/unknown:v1", ociManifest, layer("application/x", wasmtest.EmptyModule))
	i.Push("p/none:v1", ociManifest)
	i.Push("p/torn:v1", ociManifest, layer(archiveTypes[0], zipped[:len(zipped)/2]))
	i.Push("p/bomb:v1", ociManifest,
		layer(archiveTypes[0],
			archived(t, strings.Repeat("\x00", MaxBytes/2+1), "a", "plugin.wasm")))
	i.Push("p/sparse:v1", ociManifest, layer(archiveTypes[0], sparse(t, "posix")))
	i.Push("p/oldsparse:v1", ociManifest, layer(archiveTypes[0], sparse(t, "gnu")))

	zeros := strings.Repeat("0", 64)
	for from, want := range map[string]struct{ sum, err string }{
		"p/oci:v1":                         {},
		"p/oci:v1@" + oci.Digest.String():  {sum: oci.Digest.Encoded()},
		"p/oci@" + oci.Digest.String():     {},
		"p/oci@sha256:" + zeros:            {err: "not found"},
		"p/plain":                          {sum: strings.ToUpper(plain.Digest.Encoded())},
		"p/compat:v1":                      {},
		"p/docker:v1":                      {},
		"p/index:v1":                       {sum: index.Digest.Encoded()},
		"p/index@" + index.Digest.String(): {sum: module.Digest.Encoded()},
		"p/index:other":                    {err: "no layer with a Wasm module"},
		"p/empty:v1":                       {err: "no complete plugin.wasm"},
		"p/unknown:v1":                     {err: "no layer with a Wasm module"},
		"p/none:v1":                        {err: "no layer with a Wasm module"},
		"p/torn:v1":                        {err: "unexpected EOF"},
		"p/bomb:v1":                        {err: "no complete plugin.wasm in the first 64 MB"},
		"p/sparse:v1":                      {err: "plugin.wasm has more than 64 MB"},
		"p/oldsparse:v1":                   {err: "no complete plugin.wasm"},
		"p/missing:v1":                     {err: "not found"},
		"p/oci:v1?x=y":                     {err: "invalid"},
	} {
		t.Run(from, func(t *testing.T) {
			found, err := local.Fetch(t.Context(), "oci://"+i.Host+"/"+from, "")
			switch {
			case want.err == "" && (err != nil || string(found.Code) != wasmtest.EmptyModule):
				t.Errorf("%d bytes, %v", len(found.Code), err)
			case want.err == "" && (!found.HasSHA256(want.sum) || found.HasSHA256(zeros)):
				t.Errorf("sums %v, want %q", found.SHA256Sums, want.sum)
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
			i := wasmtest.NewRegistry(t, c.guard)
			i.Push("p/oci:v1", wasmtest.OCIManifest, layer(moduleTypes[0], wasmtest.EmptyModule))
			if c.host == "" {
				c.host = i.Host
			}
			_, err := local.Fetch(t.Context(), "oci://"+i.Host+"/p/oci:v1",
				dockerConfig(c.host, c.user, c.password))
			if fmt.Sprint(err) == c.err || err != nil && (c.err == "" ||
				!strings.Contains(err.Error(), c.err)) || err == nil && c.err != "" {
				t.Errorf("got %v, want %q", err, c.err)
			}
			if text := fmt.Sprint(err); strings.Contains(text, password) {
				t.Errorf("the password is in %s", text)
			}
		})
	}
	if _, err := local.Fetch(t.Context(), "oci://127.0.0.1:1/p", "no JSON"); err == nil ||
		!strings.Contains(err.Error(), "image pull secret") {
		t.Errorf("an invalid pull secret: %v", err)
	}
}
