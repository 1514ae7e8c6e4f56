package parts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// programs has the build function of each program, by name.
var programs sync.Map

// ProgramPath returns the path of a copy of the program cmd/NAME for this test only.
func ProgramPath(t testing.TB, name string) string {
	t.Helper()
	built := BuildProgram(t, name)
	path := filepath.Join(ShortDir(t), name)
	// Let another process write the file: if this process did, a concurrently forked child could
	// hold it open, and exec would fail (ETXTBSY).
	if out, err := exec.Command("install", "-m", "0700", built, path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// BuildProgram builds the program cmd/NAME and returns its path. It builds once for the test
// process and for the processes that it starts afterwards (InNetwork).
func BuildProgram(t testing.TB, name string) string {
	t.Helper()
	build, _ := programs.LoadOrStore(name, sync.OnceValues(func() (string, error) {
		variable := "OUTRIDER_TEST_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		if path := os.Getenv(variable); path != "" {
			return path, nil
		}
		folder, err := Build(nil, "programs", "./cmd/"+name)
		if err != nil {
			return "", err
		}
		path := filepath.Join(folder, name)
		return path, os.Setenv(variable, path) //nolint:usetesting // for all tests
	}))
	path, err := build.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Build builds programs as scripts/build does, in build/NAME, and returns that folder. arguments
// are additional flags or packages, environment is added to that of the process. A program that is
// up to date is not linked again.
func Build(environment []string, name string, arguments ...string) (string, error) {
	folder := filepath.Join(Root(), "build", name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	// Lock the folder: the tests of two packages may build at the same time.
	command := exec.Command("flock", append([]string{folder + ".lock",
		filepath.Join(Root(), "scripts", "build"), folder}, arguments...)...)
	command.Env = append(os.Environ(), environment...)
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %v: %w: %s", arguments, err, out)
	}
	return folder, nil
}
