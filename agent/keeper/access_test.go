package keeper

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

func TestAccess(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	result, err := l.client.CheckAccess(l.context(), "/dev/null")
	if err != nil || !result.Readable || result.ResolvedPath != "/dev/null" || result.Inode == 0 {
		t.Errorf("/dev/null: %+v, %v", result, err)
	}
	_, err = l.client.CheckAccess(l.context(), "/dev/no-such-file")
	if err == nil || HasCode(err, CodeInvalid) || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("missing: %v", err)
	}
	for _, path := range []string{"", "dev/null", "/" + strings.Repeat("a", 4096)} {
		if _, err = l.client.CheckAccess(l.context(), path); !HasCode(err, CodeInvalid) {
			t.Errorf("%.20q: %v", path, err)
		}
	}
	var all sync.WaitGroup
	for range 10 * maxCalls {
		all.Go(func() {
			if _, err := l.client.CheckAccess(l.context(), "/dev/null"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// A keeper that does not support an operation answers with an error and stays connected.
func TestAccess_UnknownOperation(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	if _, err := l.client.call(l.context(), request{Operation: "of-a-later-version"}); !HasCode(err,
		CodeInvalid) {
		t.Error(err)
	}
	if _, err := l.client.Processes(l.context()); err != nil {
		t.Error(err)
	}
}

// A file system that does not respond delays no other call. Meanwhile the keeper does not
// re-execute itself, because exec would wait for the blocked thread.
func TestAccess_HangingFileSystem(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "outrider-keeper")
	copyProgram(t, program)
	l := newLabWith(t, program)
	folder := t.TempDir()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	release := parts.HangingMount(t, folder)
	var hung sync.WaitGroup
	for i := range maxRequests - 1 {
		hung.Go(func() {
			_, err := l.client.CheckAccess(l.context(), filepath.Join(folder, fmt.Sprint(i)))
			if !HasCode(err, CodeInternal) || !strings.Contains(err.Error(), "does not answer") {
				t.Error(err)
			}
		})
	}
	for range 20 {
		if result, err := l.client.CheckAccess(l.context(), file); err != nil || !result.Readable {
			t.Errorf("another file: %+v, %v", result, err)
		}
		if _, err := l.client.Processes(l.context()); err != nil {
			t.Error(err)
		}
	}
	hung.Wait()
	if err := l.client.reexecute(l.context()); !HasCode(err, CodeReexecuteFailed) {
		t.Errorf("re-execution during a check: %v", err)
	}
	if result, err := l.client.CheckAccess(l.context(), file); err != nil || !result.Readable {
		t.Errorf("after the refused re-execution: %+v, %v", result, err)
	}
	release()
	if err := l.client.reexecute(l.context()); err != nil {
		t.Error(err)
	}
	<-l.client.Done()
	l.client.Close()
	l.dial()
	if l.client.Info().Reexecuted != 1 {
		t.Errorf("%+v", l.client.Info())
	}
}
