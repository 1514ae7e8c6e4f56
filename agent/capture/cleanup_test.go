package capture

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

// Cleanup cannot delete the table of an outrider-capture that hangs, and therefore reports an
// error.
func TestCleanup_NamesTheTableOfAHelperThatHangs(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.startEnvoy()
	r.apply(captureAll)
	r.captures(StateOn)
	parts.PauseProcess(t, r.helper.Process.Pid)
	state := filepath.Join(r.folder, StateFileName)
	folder := openRoot(t, r.folder)
	const fix = `table inet outrider belongs to an outrider-capture that does not answer; run ` +
		`"systemctl kill -s KILL outrider-capture.service"`
	if _, err := Cleanup("", folder); err == nil || !strings.HasPrefix(err.Error(), fix) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(state); err != nil {
		t.Errorf("the state is lost: %v", err)
	}
	r.kill(r.helper)
	if _, err := Cleanup("", folder); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(state); !os.IsNotExist(err) {
		t.Errorf("the state: %v", err)
	}
}

func openRoot(t *testing.T, path string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}

// Cleanup also deletes tables without an owner, as on kernels before 5.12.
func TestCleanup_DeletesTablesWithoutOwner(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	socket, err := newOwnerSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	names := []string{"outrider", "outrider-closed", "outrider-dns", "outrider-nat"}
	for _, name := range names {
		if err := socket.install(&Table{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	h := &helper{options: options{log: t.Output()}, unowned: true, nat: socket}
	h.quit()
	if done, err := Cleanup("", nil); err != nil ||
		!slices.Equal(done, names[:3]) {
		t.Errorf("%v, %v", done, err)
	}
	if socket, err = newOwnerSocket(); err != nil {
		t.Fatal(err)
	}
	if err := socket.install(&Table{Name: names[3]}); err != nil {
		t.Fatal(err)
	}
	if done, err := Cleanup("", nil); err != nil ||
		!slices.Equal(done, names[3:]) {
		t.Errorf("%v, %v", done, err)
	}
}
