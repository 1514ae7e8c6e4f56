package sockdiag

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEachUnix(t *testing.T) {
	proc := t.TempDir()
	const table = "Num       RefCount Protocol Flags    Type St Inode Path\n" +
		"0000000000000000: 00000002 00000000 00010000 0001 01     1 /run/a b.sock\n" +
		"0000000000000000: 00000003 00000000 00000000 0001 03 15936 /run/a b.sock\n" +
		"0000000000000000: 00000003 00000000 00000000 0001 03 15937\n" +
		"0000000000000000: 00000002 00000000 00010000 0001 01 15938 @abstract\n"
	if err := os.Mkdir(filepath.Join(proc, "net"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(proc, "net/unix"), []byte(table), 0o644); err != nil {
		t.Fatal(err)
	}
	var got []UnixSocket
	if err := EachUnixSocket(proc, func(s UnixSocket) { got = append(got, s) }); err != nil {
		t.Fatal(err)
	}
	want := []UnixSocket{
		{false, 1, "/run/a b.sock"}, {true, 15936, "/run/a b.sock"}, {false, 15938, "@abstract"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
