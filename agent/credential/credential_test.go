package credential

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCheckName_AcceptsNoPaths(t *testing.T) {
	for name, valid := range map[string]bool{
		"web": true, "web-1.example.com": true, "0": true, strings.Repeat("a", 253): true,
		"": false, ".": false, "..": false, "../web": false, "a/b": false, "/web": false,
		"-a": false, "a.": false, "Web": false, "a b": false, "a\x00b": false, "a~b": false,
		"ä": false, "a\n": false, strings.Repeat("a", 254): false,
	} {
		if err := CheckName(name); (err == nil) != valid {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestLocate(t *testing.T) {
	for secret, want := range map[string][]string{
		KeyPairSecretName("web"):      {"/c/web/tls.crt", "/c/web/tls.key"},
		RootsSecretName("web"):        {"/c/web-cacert/ca.crt", "/c/web/ca.crt", "/c/web-cacert/ca.crl", "/c/web/ca.crl"},
		RootsSecretName("web-cacert"): {"/c/web-cacert/ca.crt", "/c/web/ca.crt", "/c/web-cacert/ca.crl", "/c/web/ca.crl"},
		KeyPairSecretName("../web"):   nil,
		RootsSecretName("../web"):     nil,
		KeyPairSecretName("-cacert"):  nil,
	} {
		files, err := LocateFiles("/c", secret)
		if diff := cmp.Diff(want, files.AllPaths()); diff != "" || (err == nil) != (want != nil) {
			t.Errorf("%s: %v, -want +got:\n%s", secret, err, diff)
		}
	}
}

// write writes files below a new directory and returns the directory.
func write(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, file := range files {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestPresent_AuthoritiesOfTheirOwnFolderComeFirst(t *testing.T) {
	cases := []struct{ files, want []string }{
		{[]string{"a/ca.crt", "a/ca.crl"}, []string{"a/ca.crt", "a/ca.crl"}},
		{[]string{"a/ca.crt", "a/ca.crl", "a-cacert/ca.crt"}, []string{"a-cacert/ca.crt"}},
		{[]string{"a-cacert/ca.crt", "a-cacert/ca.crl"},
			[]string{"a-cacert/ca.crt", "a-cacert/ca.crl"}},
		// a-cacert exists without ca.crt, as during a replacement of its files: a/ca.crt must not
		// be used instead.
		{[]string{"a/ca.crt", "a-cacert/ca.crl"}, nil},
		{[]string{"a/tls.crt"}, nil},
	}
	for _, c := range cases {
		dir := write(t, c.files...)
		files, err := LocateFiles(dir, RootsSecretName("a"))
		if err != nil {
			t.Fatal(err)
		}
		present, err := files.ExistingFiles()
		var got []string
		for _, path := range present.AllPaths() {
			got = append(got, strings.TrimPrefix(path, dir+"/"))
		}
		if diff := cmp.Diff(c.want, got); diff != "" ||
			errors.Is(err, fs.ErrNotExist) != (c.want == nil) {
			t.Errorf("%v: %v, -want +got:\n%s", c.files, err, diff)
		}
	}
}

func TestCheckOwners_RefusesWhatOthersCouldReplace(t *testing.T) {
	cases := map[string]func(dir string) error{
		"": func(string) error { return nil },
		"/a: other users may write": func(dir string) error {
			return os.Chmod(filepath.Join(dir, "a"), 0o775)
		},
		": other users may write": func(dir string) error { return os.Chmod(dir, 0o777) },
		"/a/tls.key: other users may write": func(dir string) error {
			return os.Chmod(filepath.Join(dir, "a", "tls.key"), 0o622)
		},
		"/elsewhere: other users may write": func(dir string) error {
			key, other := filepath.Join(dir, "a", "tls.key"), filepath.Join(dir, "elsewhere")
			return errors.Join(os.Mkdir(other, 0o700), os.Rename(key, filepath.Join(other, "key")),
				os.Symlink(filepath.Join(other, "key"), key), os.Chmod(other, 0o777))
		},
	}
	for want, change := range cases {
		dir := write(t, "a/tls.crt", "a/tls.key")
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		files, err := LocateFiles(dir, KeyPairSecretName("a"))
		if err != nil {
			t.Fatal(err)
		}
		err = files.CheckOwners()
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), dir+want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

// FuzzLocate checks for arbitrary names that no located file is outside the directory of
// credentials, and that no file is located for a secret sds://NAME.
func FuzzLocate(f *testing.F) {
	for _, name := range []string{"web", "web-cacert", "../web", "a/../../b", "..", "-cacert", "sds://web",
		"sds://", "sds://../web-cacert"} {
		f.Add(KeyPairSecretName(name))
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, secret string) {
		files, err := LocateFiles("/c", secret)
		if err != nil {
			return
		}
		if IsExternalSDSSecret(secret) {
			t.Errorf("%q has files", secret)
		}
		for _, path := range files.AllPaths() {
			if rest, ok := strings.CutPrefix(path, "/c/"); !ok || strings.Count(rest, "/") != 1 {
				t.Errorf("%q leads to %s", secret, path)
			}
		}
	})
}
