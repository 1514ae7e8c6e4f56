package keeper

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

// victim is a file of root beside the keeper's folder.
func victim(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "victim")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLockFolder_RefusesForeignFile(t *testing.T) {
	for name, plant := range map[string]func(victim, lock string) error{
		"symbolic link": os.Symlink,
		"hard link":     os.Link,
		"FIFO":          func(_, lock string) error { return unix.Mkfifo(lock, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := plant(victim(t, dir), filepath.Join(dir, lockName)); err != nil {
				t.Fatal(err)
			}
			lock, err := lockFolder(dir)
			if err == nil {
				_ = lock.Close()
				t.Error("locked")
			}
		})
	}
}

func TestChownFolder_ChangesOnlyWhatIsOpen(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("only root can give files away: run the tests as root")
	}
	dir := t.TempDir()
	root, folder := victim(t, dir), filepath.Join(dir, "keeper")
	lock, err := lockFolder(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	// The keeper's user puts root's file in the place of the lock.
	if err := os.Remove(lock.Name()); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(root, lock.Name()); err != nil {
		t.Fatal(err)
	}
	if err := chownFolder(folder, lock, &User{UID: 12345, GID: 12345}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]uint32{folder: 12345, root: 0} {
		var status unix.Stat_t
		if err := unix.Stat(path, &status); err != nil || status.Uid != want {
			t.Errorf("%s is user %d's, not %d's: %v", path, status.Uid, want, err)
		}
	}
}

func TestListenPrivately_ModeWithoutChmod(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	path := filepath.Join(parts.ShortDir(t), "k.sock")
	listener, err := listenPrivately(path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}
