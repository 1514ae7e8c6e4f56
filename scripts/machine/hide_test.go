package machine

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestBoot_HidesOutriderOfThisMachine boots a root directory in which Outrider is installed and has
// run. The booted machine must not see its files.
func TestBoot_HidesOutriderOfThisMachine(t *testing.T) {
	base := t.TempDir()
	mount := func(source, target, kind, data string) {
		t.Helper()
		if err := syscall.Mount(source, target, kind, 0, data); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(target, syscall.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	mount("hide", base, "tmpfs", "size=64m")
	root := filepath.Join(base, "root")
	for _, folder := range []string{root, base + "/upper", base + "/work"} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mount("hide", root, "overlay", "lowerdir=/,upperdir="+base+"/upper,workdir="+base+"/work")

	write := func(name, text string) {
		t.Helper()
		file, err := openBelow(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteString(text); err != nil {
			t.Error(err)
		}
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{
		"etc/outrider/outrider.toml", "etc/systemd/system/outrider.service.d/mine.conf",
		"usr/sbin/outriderd", "usr/lib/systemd/system/outrider@.service",
		"usr/share/man/man1/outrider.1.gz", "var/lib/outrider/state", "var/log/outrider/access.log",
		"var/lib/dpkg/info/outrider.list", "var/tmp/my-outrider-notes", "var/tmp/other",
	} {
		write(name, "\n")
	}
	write("etc/passwd", "outrider:x:997:997::/var/lib/outrider:/usr/sbin/nologin\n")
	write("etc/group", "outrider:x:997:\n")
	write("var/lib/dpkg/status", "\nPackage: outrider\nStatus: install ok installed\n"+
		"Architecture: all\nMaintainer: nobody\nVersion: 1\nDescription: mine\n")

	m := BootForTest(t, Options{Root: root})
	const search = `find /etc /usr /var -xdev -iname '*outrider*'; ls /var/tmp | grep -v ^systemd-private
		getent passwd outrider; getent group outrider; dpkg-query -W outrider 2>/dev/null; dpkg -s dpkg | head -n 1`
	if got := m.MustRun(t, "sh", "-c", search); got != "Package: dpkg" {
		t.Errorf("the machine shows:\n%s", got)
	}
	if state := m.MustRun(t, "systemctl", "is-system-running", "--wait"); state != "running" {
		t.Errorf("the system is %s", state)
	}
}

// openBelow opens a file for appending, and creates its parent directories.
func openBelow(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
}
