package parts

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// programs has what builds each program, by name.
var programs sync.Map

// Program returns the path of a copy of the program cmd/NAME that belongs to the test. A test
// process builds it once.
func Program(t testing.TB, name string) string {
	t.Helper()
	build, _ := programs.LoadOrStore(name, sync.OnceValues(func() ([]byte, error) {
		path := filepath.Join(ShortDir(t), name)
		command := exec.Command("go", "build", "-o", path, "./cmd/"+name)
		command.Dir = Root()
		if out, err := command.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w: %s", name, err, out)
		}
		return os.ReadFile(path)
	}))
	text, err := build.(func() ([]byte, error))()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(ShortDir(t), name)
	// Another process writes it: exec fails (ETXTBSY) while a child that this one forks has it open.
	write := exec.Command("sh", "-c", `cat >"$0" && chmod 0700 "$0"`, path)
	write.Stdin = bytes.NewReader(text)
	if out, err := write.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}
