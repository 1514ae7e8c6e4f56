package keeper

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"
)

func TestClearInitializing_RefusesUnknownLayout(t *testing.T) {
	memory := sharedMemory{t.TempDir()}
	content := func(size, version, flags uint64, length int) []byte {
		data := make([]byte, 256)
		binary.LittleEndian.PutUint64(data, size)
		binary.LittleEndian.PutUint64(data[8:], version)
		binary.LittleEndian.PutUint64(data[flagsOffset:], flags)
		return data[:length]
	}
	for name, test := range map[string]struct {
		content []byte
		cleared bool
		code    Code
	}{
		"set":           {content(104, 11, 1, 104), true, ""},
		"not set":       {content(104, 11, 0, 104), false, ""},
		"reserved":      {nil, false, ""},
		"other size":    {content(112, 11, 1, 112), false, CodeUnknownLayout},
		"other version": {content(104, 12, 1, 104), false, CodeUnknownLayout},
		"cut":           {content(104, 11, 1, 100), false, CodeUnknownLayout},
		"longer":        {content(104, 11, 1, 105), false, CodeUnknownLayout},
	} {
		if err := os.WriteFile(memory.path(5), test.content, 0o600); err != nil {
			t.Fatal(err)
		}
		cleared, err := memory.clearInitializing(5)
		if cleared != test.cleared || (err != nil) != (test.code != "") || err != nil &&
			!HasCode(err, test.code) {
			t.Errorf("%s: %v, %v", name, cleared, err)
		}
		after, err := os.ReadFile(memory.path(5))
		if err != nil {
			t.Fatal(err)
		}
		if !test.cleared && !bytes.Equal(after, test.content) {
			t.Errorf("%s: changed", name)
		}
	}
	if cleared, err := memory.clearInitializing(6); cleared || err != nil {
		t.Errorf("no file: %v, %v", cleared, err)
	}
}

func TestBaseID(t *testing.T) {
	memory, folder, other := sharedMemory{t.TempDir()}, t.TempDir(), t.TempDir()
	first, err := memory.choose(0, folder)
	if err != nil || first == 0 {
		t.Fatal(first, err)
	}
	if again, err := memory.choose(0, folder); err != nil || again != first {
		t.Errorf("the same folder: %d, then %d, %v", first, again, err)
	}
	if err := os.Remove(folder + "/base-id"); err != nil {
		t.Fatal(err)
	}
	if next, err := memory.choose(0, folder); err != nil || next == first {
		t.Errorf("taken %d is chosen again: %d, %v", first, next, err)
	}
	if different, err := memory.choose(0, other); err != nil || different == first {
		t.Errorf("another folder: %d, %v", different, err)
	}
	if given, err := memory.choose(42, folder); err != nil || given != 42 {
		t.Errorf("given: %d, %v", given, err)
	}
	if _, err := memory.choose(maxBaseID+1, folder); err == nil {
		t.Error("a base id that does not fit is taken")
	}
	link := sharedMemory{t.TempDir()}
	if err := os.Symlink("/etc/hostname", link.path(7)); err != nil {
		t.Fatal(err)
	}
	if _, err := link.clearInitializing(7); err == nil {
		t.Error("a link is followed")
	}
}
