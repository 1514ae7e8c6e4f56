package reexec

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// generation is an environment variable with the number of the test program's image.
const generation = "OUTRIDER_TEST_GENERATION"

type state struct {
	Text string
	Pipe int
}

func TestMain(m *testing.M) {
	number, err := strconv.Atoi(os.Getenv(generation))
	if err != nil {
		os.Exit(m.Run())
	}
	if err := image(number); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// image reads the state of the previous image and replaces the test program, until the third image.
func image(number int) error {
	inherited := state{Text: "began"}
	output := os.Stdout
	for _, argument := range os.Args {
		if value, found := strings.CutPrefix(argument, "-state="); found {
			fd, err := strconv.Atoi(value)
			if err != nil {
				return err
			}
			if err := ReadState(InheritedFile(fd, "state"), &inherited); err != nil {
				return err
			}
			output = InheritedFile(inherited.Pipe, "pipe")
		}
	}
	_, _ = fmt.Fprintln(output, os.Getpid(), number, inherited.Text, len(os.Args), os.Args[1])
	if number == 2 {
		return nil
	}
	program, err := InstalledProgram()
	if err != nil {
		return err
	}
	if err := os.Setenv(generation, strconv.Itoa(number+1)); err != nil {
		return err
	}
	var next NextImage
	defer next.Close()
	pipe, err := next.Add(output)
	if err != nil {
		return err
	}
	fd, err := next.AddState("test", state{Text: inherited.Text + " again", Pipe: pipe})
	if err != nil {
		return err
	}
	return next.Exec(program, map[string]int{"state": fd})
}

func TestExec(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program, "-own=1")
	command.Env = append(os.Environ(), generation+"=0")
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pid := command.Process.Pid
	want := fmt.Sprintf("%d 0 began 2 -own=1\n%d 1 began again 3 -own=1\n"+
		"%d 2 began again again 3 -own=1\n", pid, pid, pid)
	if string(out) != want {
		t.Errorf("%s, want %s", out, want)
	}
}

func TestExec_FailureLeavesNothing(t *testing.T) {
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := open()
	var next NextImage
	number, err := next.Add(os.Stdin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := next.AddState("test", state{}); err != nil {
		t.Fatal(err)
	}
	err = next.Exec("/nonexistent", map[string]int{"stdin": number})
	if err == nil || !strings.HasPrefix(err.Error(), "cannot execute /nonexistent: ") {
		t.Error(err)
	}
	if next.Close(); open() != before {
		t.Errorf("%d descriptors, %d before", open(), before)
	}
}

func TestArguments(t *testing.T) {
	got := arguments([]string{"program", "-a-fd=3", "--b-fd=4", "-c=5", "-d", "a-fd=6"},
		map[string]int{"a-fd": 7}, []string{"b-fd"})
	if want := []string{"program", "-c=5", "-d", "a-fd=6", "-a-fd=7"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
