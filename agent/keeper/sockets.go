package keeper

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Envoy names its hot-restart sockets <path>_<role>_<base id * 10 + epoch % 3>
// (source/server/hot_restarting_base.cc: at most three generations at a time).
const generations = 3

func hotRestartSocket(path, role string, baseID uint32, epoch int) string {
	return fmt.Sprintf("%s_%s_%d", path, role, uint64(baseID)*10+uint64(epoch%generations))
}

// adminSocket returns the path of the admin interface of an epoch, as the agent writes it to the
// bootstrap.
func adminSocket(folder string, number int) string {
	return filepath.Join(folder, fmt.Sprintf("admin-%d.sock", number))
}

var hotRestartRoles = []string{"parent", "child", "udp_parent", "udp_child"}

// removeSockets removes Envoy's hot-restart and admin sockets.
func removeSockets(info Info) error {
	var failures []error
	remove := func(path string) {
		if err := removeSocket(path); err != nil {
			failures = append(failures, err)
		}
	}
	for _, role := range hotRestartRoles {
		for i := range MaxLineages * generations {
			remove(hotRestartSocket(info.SocketPath, role, info.BaseIDOf(i/generations),
				i%generations))
		}
	}
	admins, _ := filepath.Glob(filepath.Join(info.Folder, "admin-*.sock"))
	for _, path := range admins {
		remove(path)
	}
	return errors.Join(failures...)
}

// removeSocket removes a file if it is a socket.
func removeSocket(path string) error {
	var status unix.Stat_t
	if unix.Lstat(path, &status) != nil || status.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil //nolint:nilerr // not there, or not a socket
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// maxSocketPath is the length of sun_path without the terminating zero.
const maxSocketPath = 107

func checkSocketPaths(info Info) error {
	longest := hotRestartSocket(info.SocketPath, "udp_parent", maxBaseID, 2)
	if excess := len(longest) - maxSocketPath; excess > 0 {
		return fmt.Errorf("the folder %s is %d bytes too long for Unix sockets in it; choose a "+
			"shorter runtime_dir", info.Folder, excess)
	}
	return nil
}
