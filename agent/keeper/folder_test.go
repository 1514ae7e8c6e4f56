package keeper

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

func TestMakeFolderOf_ChangesOnlyWhatIsOpen(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("only root can give files away: run the tests as root")
	}
	dir := t.TempDir()
	root, folder, link := filepath.Join(dir, "root"), filepath.Join(dir, "keeper"),
		filepath.Join(dir, "link")
	user := &User{UID: 12345, GID: 12345}
	if err := makeFolderOf(user, folder); err != nil {
		t.Fatal(err)
	}
	// The keeper's user replaces its folder by a link to a folder of root.
	if err := errors.Join(os.Mkdir(root, 0o700), os.Symlink(root, link)); err != nil {
		t.Fatal(err)
	}
	if err := makeFolderOf(user, link); err == nil {
		t.Error("a symbolic link was followed")
	}
	for path, want := range map[string]uint32{folder: 12345, root: 0} {
		var status unix.Stat_t
		if err := unix.Stat(path, &status); err != nil || status.Uid != want {
			t.Errorf("%s is user %d's, not %d's: %v", path, status.Uid, want, err)
		}
	}
}

func TestStartKeeper_ReportsFailedStart(t *testing.T) {
	t.Parallel()
	_, err := StartKeeper(t.Context(), LaunchOptions{Folder: t.TempDir(), BaseID: math.MaxUint32,
		Binary: selfPath(t), Env: keeperEnvironmentOf()})
	if err == nil || !strings.Contains(err.Error(), "exited before it listened (exit status 2)") {
		t.Error(err)
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
