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

// programs contains a function for each program that builds it once, by name.
var programs sync.Map

// CopyProgram returns the path of a copy of cmd/NAME that only this test uses.
func CopyProgram(t testing.TB, name string) string {
	t.Helper()
	built := BuildProgram(t, name)
	path := filepath.Join(ShortDir(t), name)
	// Another process must write the file. If this process wrote it, a child that is forked at the
	// same time could inherit the open descriptor, and exec would fail (ETXTBSY).
	if out, err := exec.Command("install", "-m", "0700", built, path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// BuildProgram builds cmd/NAME and returns its path. The program is built only once for this
// process and for the processes that it starts.
func BuildProgram(t testing.TB, name string) string {
	t.Helper()
	build, _ := programs.LoadOrStore(name, sync.OnceValues(func() (string, error) {
		if path := os.Getenv(variable(name)); path != "" {
			return path, nil
		}
		folder, err := RunBuildScript(nil, "programs", "./cmd/"+name)
		if err != nil {
			return "", err
		}
		path := filepath.Join(folder, name)
		return path, UseBuiltProgram(path)
	}))
	path, err := build.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// UseBuiltProgram makes BuildProgram return the path of a program that is already built, in this
// process and in those that it starts.
func UseBuiltProgram(path string) error {
	return os.Setenv(variable(filepath.Base(path)), path)
}

// variable returns the name of the environment variable with the path of cmd/NAME.
func variable(name string) string {
	return "OUTRIDER_TEST_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// RunBuildScript runs scripts/build with arguments (flags and packages) and additional environment
// variables. It returns the folder of the programs, build/NAME. A program that is up to date is not
// linked again.
func RunBuildScript(environment []string, name string, arguments ...string) (string, error) {
	folder := filepath.Join(RepositoryRoot(), "build", name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	// flock prevents the tests of two packages from building at the same time.
	command := exec.Command("flock", append([]string{folder + ".lock",
		filepath.Join(RepositoryRoot(), "scripts", "build"), folder}, arguments...)...)
	command.Env = append(os.Environ(), environment...)
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %v: %w: %s", arguments, err, out)
	}
	return folder, nil
}
