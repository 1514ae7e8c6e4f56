package watch

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Each case changes f.toml as an editor or tool does, or leaves its content unchanged. A change is
// reported exactly once.
func TestEditors_MakeOneChange(t *testing.T) {
	habits := []struct {
		name    string
		prepare func(t *testing.T, dir string) // replaces the default, which writes "old" to f.toml
		do      func(t *testing.T, dir string)
		silent  bool // the content is the same at the end, so nothing is reported
	}{
		{name: "write in place", do: func(t *testing.T, dir string) {
			write(t, dir+"/f.toml", "new")
		}},
		{name: "append in many small writes", do: func(t *testing.T, dir string) {
			file, err := os.OpenFile(dir+"/f.toml", os.O_APPEND|os.O_WRONLY, 0)
			must(t, err)
			for range 50 {
				_, err := file.WriteString("more\n")
				must(t, err)
			}
			must(t, file.Close())
		}},
		{name: "rename over", do: func(t *testing.T, dir string) {
			write(t, dir+"/.f.toml.123", "new")
			rename(t, dir+"/.f.toml.123", dir+"/f.toml")
		}},
		{name: "rename over from another folder", do: func(t *testing.T, dir string) {
			mkdir(t, dir+"/elsewhere")
			write(t, dir+"/elsewhere/f", "new")
			rename(t, dir+"/elsewhere/f", dir+"/f.toml")
		}},
		{name: "vim: probe, backup by rename, write, chmod, remove backup",
			do: func(t *testing.T, dir string) {
				write(t, dir+"/4913", "")
				remove(t, dir+"/4913")
				rename(t, dir+"/f.toml", dir+"/f.toml~")
				write(t, dir+"/f.toml", "new")
				must(t, os.Chmod(dir+"/f.toml", 0o644))
				remove(t, dir+"/f.toml~")
			}},
		{name: "emacs: lock, backup by copy, truncate, write, unlock",
			do: func(t *testing.T, dir string) {
				link(t, "user@host.123:456", dir+"/.#f.toml")
				write(t, dir+"/f.toml~", "old")
				must(t, os.Truncate(dir+"/f.toml", 0))
				write(t, dir+"/f.toml", "new")
				remove(t, dir+"/.#f.toml")
			}},
		{name: "sed -i", do: func(t *testing.T, dir string) {
			must(t, exec.Command("sed", "-i", "s/old/new/", dir+"/f.toml").Run())
		}},
		{name: "delete and re-create", do: func(t *testing.T, dir string) {
			remove(t, dir+"/f.toml")
			write(t, dir+"/f.toml", "new")
		}},
		{name: "delete", do: func(t *testing.T, dir string) {
			remove(t, dir+"/f.toml")
		}},
		{name: "created for the first time", prepare: func(t *testing.T, dir string) {
			remove(t, dir+"/f.toml")
		}, do: func(t *testing.T, dir string) {
			write(t, dir+"/f.toml", "new")
		}},
		{name: "a directory takes its place and goes again", do: func(t *testing.T, dir string) {
			remove(t, dir+"/f.toml")
			mkdir(t, dir+"/f.toml")
			remove(t, dir+"/f.toml")
		}},
		{name: "a link takes its place", do: func(t *testing.T, dir string) {
			write(t, dir+"/target", "new")
			link(t, "target", dir+"/f.toml.new")
			rename(t, dir+"/f.toml.new", dir+"/f.toml")
		}},
		{name: "touch", silent: true, do: func(t *testing.T, dir string) {
			now := time.Now()
			must(t, os.Chtimes(dir+"/f.toml", now, now))
		}},
		{name: "chmod", silent: true, do: func(t *testing.T, dir string) {
			must(t, os.Chmod(dir+"/f.toml", 0o640))
		}},
		{name: "written with what it held", silent: true, do: func(t *testing.T, dir string) {
			write(t, dir+"/f.toml", "old")
		}},
		{name: "replaced by an equal one", silent: true, do: func(t *testing.T, dir string) {
			write(t, dir+"/f.new", "old")
			rename(t, dir+"/f.new", dir+"/f.toml")
		}},
		{name: "changed and changed back", silent: true, do: func(t *testing.T, dir string) {
			write(t, dir+"/f.toml", "new")
			write(t, dir+"/f.toml", "old")
		}},
		{name: "deleted and created as it was", silent: true, do: func(t *testing.T, dir string) {
			remove(t, dir+"/f.toml")
			write(t, dir+"/f.toml", "old")
		}},
		{name: "a neighbour", silent: true, do: func(t *testing.T, dir string) {
			write(t, dir+"/g.toml", "new")
		}},
	}
	for _, habit := range habits {
		t.Run(habit.name, func(t *testing.T) {
			t.Parallel()
			dir, watcher := together(t, func(dir string) *Watcher {
				write(t, dir+"/f.toml", "old")
				if habit.prepare != nil {
					habit.prepare(t, dir)
				}
				return run(t, testOptions(), dir+"/f.toml")
			}, func(dir string) { habit.do(t, dir) })
			if !habit.silent {
				if diff := cmp.Diff([]string{dir + "/f.toml"}, next(t, watcher)); diff != "" {
					t.Errorf("changes (-want +got):\n%s", diff)
				}
			}
			quiet(t, watcher)
		})
	}
}

// Changes of folders and links on the path a/b/f.toml are reported, too.
func TestPath_FollowsFoldersAndLinks(t *testing.T) {
	const path = "a/b/f.toml"
	cases := []struct {
		name   string
		before func(t *testing.T, dir string)
		do     func(t *testing.T, dir string)
		silent bool
	}{
		{name: "all folders are created later", do: func(t *testing.T, dir string) {
			mkdir(t, dir+"/a/b")
			write(t, dir+"/"+path, "new")
		}},
		{name: "a folder is removed", before: there, do: func(t *testing.T, dir string) {
			remove(t, dir+"/a")
		}},
		{name: "a folder is moved away", before: there, do: func(t *testing.T, dir string) {
			rename(t, dir+"/a", dir+"/elsewhere")
		}},
		{name: "a folder is moved away and back",
			before: there, silent: true, do: func(t *testing.T, dir string) {
				rename(t, dir+"/a", dir+"/elsewhere")
				rename(t, dir+"/elsewhere", dir+"/a")
			}},
		{name: "another folder takes its place", before: func(t *testing.T, dir string) {
			there(t, dir)
			mkdir(t, dir+"/next/b")
			write(t, dir+"/next/b/f.toml", "new")
		}, do: func(t *testing.T, dir string) {
			rename(t, dir+"/a", dir+"/last")
			rename(t, dir+"/next", dir+"/a")
		}},
		{name: "a folder that holds the same takes its place",
			before: func(t *testing.T, dir string) {
				there(t, dir)
				mkdir(t, dir+"/next/b")
				write(t, dir+"/next/b/f.toml", "old")
			}, silent: true, do: func(t *testing.T, dir string) {
				rename(t, dir+"/a", dir+"/last")
				rename(t, dir+"/next", dir+"/a")
			}},
		{name: "a folder is removed and created",
			before: there, do: func(t *testing.T, dir string) {
				remove(t, dir+"/a")
				mkdir(t, dir+"/a/b")
				write(t, dir+"/"+path, "new")
			}},
		{name: "a link as folder changes its target", before: func(t *testing.T, dir string) {
			for _, version := range []string{"old", "new"} {
				mkdir(t, dir+"/"+version+"/b")
				write(t, dir+"/"+version+"/b/f.toml", version)
			}
			link(t, "old", dir+"/a")
		}, do: func(t *testing.T, dir string) {
			link(t, "new", dir+"/a.next")
			rename(t, dir+"/a.next", dir+"/a")
		}},
		{name: "written behind a chain of links", before: func(t *testing.T, dir string) {
			mkdir(t, dir+"/real/deep")
			write(t, dir+"/real/deep/file", "old")
			link(t, "real/deep", dir+"/one")
			link(t, "one", dir+"/two")
			mkdir(t, dir+"/a/b")
			link(t, "../../two/../deep/file", dir+"/"+path)
		}, do: func(t *testing.T, dir string) {
			write(t, dir+"/real/deep/file", "new")
		}},
		{name: "a link in the middle of the chain changes", before: func(t *testing.T, dir string) {
			mkdir(t, dir+"/a/b")
			write(t, dir+"/v1", "old")
			write(t, dir+"/v2", "new")
			link(t, "v1", dir+"/current")
			link(t, "../../current", dir+"/"+path)
		}, do: func(t *testing.T, dir string) {
			remove(t, dir+"/current")
			link(t, "v2", dir+"/current")
		}},
		{name: "the target of a dangling link appears", before: func(t *testing.T, dir string) {
			mkdir(t, dir+"/a/b")
			link(t, "../../later/file", dir+"/"+path)
		}, do: func(t *testing.T, dir string) {
			mkdir(t, dir+"/later")
			write(t, dir+"/later/file", "new")
		}},
		{name: "a loop of links is broken", before: func(t *testing.T, dir string) {
			mkdir(t, dir+"/a/b")
			link(t, "f.toml", dir+"/"+path)
		}, do: func(t *testing.T, dir string) {
			remove(t, dir+"/"+path)
			write(t, dir+"/"+path, "new")
		}},
		{name: "a file stands where the folder should be", before: func(t *testing.T, dir string) {
			write(t, dir+"/a", "in the way")
		}, do: func(t *testing.T, dir string) {
			remove(t, dir+"/a")
			mkdir(t, dir+"/a/b")
			write(t, dir+"/"+path, "new")
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir, watcher := together(t, func(dir string) *Watcher {
				if c.before != nil {
					c.before(t, dir)
				}
				return run(t, testOptions(), dir+"/"+path)
			}, func(dir string) { c.do(t, dir) })
			if !c.silent {
				if diff := cmp.Diff([]string{dir + "/" + path}, next(t, watcher)); diff != "" {
					t.Errorf("changes (-want +got):\n%s", diff)
				}
			}
			quiet(t, watcher)
			// The path is still watched after the change, even if it leads to another file now: a
			// later write is reported.
			mkdir(t, dir+"/a/b")
			write(t, dir+"/"+path, "last")
			if diff := cmp.Diff([]string{dir + "/" + path}, next(t, watcher)); diff != "" {
				t.Errorf("changes of the write after it (-want +got):\n%s", diff)
			}
		})
	}
}

func there(t *testing.T, dir string) {
	t.Helper()
	mkdir(t, dir+"/a/b")
	write(t, dir+"/a/b/f.toml", "old")
}

// kubernetes writes a version of a mounted ConfigMap as the kubelet does: it creates a folder for
// the version, replaces the link ..data by renaming, and removes the folder of the previous
// version.
func kubernetes(t *testing.T, dir, version string, files map[string]string) {
	t.Helper()
	folder := filepath.Join(dir, "..2026_"+version)
	mkdir(t, folder)
	for name, text := range files {
		mkdir(t, filepath.Dir(filepath.Join(folder, name)))
		write(t, filepath.Join(folder, name), text)
	}
	last, _ := os.Readlink(filepath.Join(dir, "..data"))
	link(t, filepath.Base(folder), filepath.Join(dir, "..data_tmp"))
	rename(t, filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
	if last != "" {
		remove(t, filepath.Join(dir, last))
	}
}

func TestKubernetesVolume_ReportsChangedFiles(t *testing.T) {
	dir := tempDir(t)
	kubernetes(t, dir, "1", map[string]string{"a.yaml": "1", "b.yaml": "1", "sub/c.yaml": "1"})
	for _, name := range []string{"a.yaml", "b.yaml", "sub"} {
		link(t, "..data/"+name, filepath.Join(dir, name))
	}
	watcher := run(t, testOptions(".yaml"), dir+"/...", dir+"/a.yaml")

	kubernetes(t, dir, "2", map[string]string{"a.yaml": "2", "b.yaml": "1", "sub/c.yaml": "2"})
	want := []string{dir + "/a.yaml", dir + "/sub/c.yaml"}
	if diff := cmp.Diff(want, next(t, watcher)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	quiet(t, watcher)

	kubernetes(t, dir, "3", map[string]string{
		"a.yaml": "2", "b.yaml": "3", "sub/c.yaml": "2", "sub/d.yaml": "new",
	})
	want = []string{dir + "/b.yaml", dir + "/sub/d.yaml"}
	if diff := cmp.Diff(want, next(t, watcher)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	quiet(t, watcher)
}
