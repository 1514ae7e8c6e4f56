package parts

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
)

// HangingMount mounts, on a folder, a file system that does not respond to any request. When
// release is called or the test ends, the file system is unmounted. HangingMount requires root.
func HangingMount(t testing.TB, folder string) (release func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("tests of file systems that hang must run as root")
	}
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device.Fd())
	if err := syscall.Mount("hanging", folder, "fuse", 0, options); err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() {
		if err := syscall.Unmount(folder, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
		_ = device.Close() // makes pending requests fail
	})
	t.Cleanup(release)
	return release
}
