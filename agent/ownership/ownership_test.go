package ownership

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckPath(t *testing.T) {
	self := []int{0, os.Geteuid()}
	cases := map[string]struct {
		change func(dir string) error
		want   string // beginning of the error after the path dir; "" = no error
	}{
		"only the owner writes": {},
		"a relative link": {change: func(dir string) error {
			return errors.Join(os.Rename(dir+"/a/run", dir+"/a/real"),
				os.Symlink("../a/./real", dir+"/a/run"))
		}},
		"the file": {want: "/a/run: other users may write",
			change: func(dir string) error { return os.Chmod(dir+"/a/run", 0o722) }},
		"its folder": {want: "/a: other users may write",
			change: func(dir string) error { return os.Chmod(dir+"/a", 0o775) }},
		"a folder above": {want: ": other users may write",
			change: func(dir string) error { return os.Chmod(dir, 0o777) }},
		"a folder above with the sticky bit": {
			change: func(dir string) error { return os.Chmod(dir, 0o777|fs.ModeSticky) }},
		"the folder of a link's target": {want: "/open: other users may write",
			change: func(dir string) error {
				return errors.Join(os.Mkdir(dir+"/open", 0o700), os.Chmod(dir+"/open", 0o777),
					os.Rename(dir+"/a/run", dir+"/open/run"),
					os.Symlink(dir+"/open/run", dir+"/a/run"))
			}},
		"the folder of a link between": {want: "/open: other users may write",
			change: func(dir string) error {
				return errors.Join(os.Mkdir(dir+"/open", 0o700), os.Chmod(dir+"/open", 0o777),
					os.Rename(dir+"/a/run", dir+"/a/real"),
					os.Symlink(dir+"/a/real", dir+"/open/between"),
					os.Symlink(dir+"/open/between", dir+"/a/run"))
			}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(dir+"/a", 0o755),
				os.WriteFile(dir+"/a/run", nil, 0o700)); err != nil {
				t.Fatal(err)
			}
			if c.change != nil {
				if err := c.change(dir); err != nil {
					t.Fatal(err)
				}
			}
			err = CheckPath(dir+"/a/run", self...)
			if (err == nil) != (c.want == "") || err != nil &&
				!strings.HasPrefix(err.Error(), dir+c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestCheckPath_OfAnotherOwner(t *testing.T) {
	const another = 64999
	err := CheckPath("/", another)
	if err == nil || !strings.Contains(err.Error(), "belongs to user 0") {
		t.Error(err)
	}
}

// If a symbolic link has the wrong owner, the fix is "chown -h", because chown would change its
// target.
func TestCheckPath_OfAnothersLink(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/usr", link); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(link)
	if err != nil {
		t.Fatal(err)
	}
	const another = 64999
	if err := check(link, info, []int{another}); err == nil ||
		!strings.HasSuffix(err.Error(), "; chown -h root "+link) {
		t.Error(err)
	}
}

func TestCheckPath_OfALoop(t *testing.T) {
	link := filepath.Join(t.TempDir(), "loop")
	if err := os.Symlink("loop", link); err != nil {
		t.Fatal(err)
	}
	if err := CheckPath(link, 0, os.Geteuid()); err == nil {
		t.Error("a loop of links has an end")
	}
	if err := CheckPath("relative", 0); err == nil {
		t.Error("a relative path is judged")
	}
	if err := CheckPath("/no/such/file", 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}
