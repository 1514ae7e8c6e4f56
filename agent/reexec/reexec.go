// Package reexec replaces a running program by the installed one, in the same process. The next
// image inherits descriptors, whose numbers it gets in flags or in a state, a memory file.
//
// Flags, and the format of a state, are an interface between versions: an upgrade and a downgrade
// replace a program by one of another version.
package reexec

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxState bounds a state in bytes.
const maxState = 1 << 30

// InstalledProgram returns the path of the installed program, also after it has been replaced.
func InstalledProgram() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("cannot find the program: %w", err)
	}
	return strings.TrimSuffix(path, " (deleted)"), nil
}

// NextImage has the descriptors and state that the next image inherits. Close must be called after
// a failure.
type NextImage struct{ numbers []int }

// Add duplicates a descriptor and returns its number in the next image.
func (i *NextImage) Add(file syscall.Conn) (int, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("cannot duplicate a descriptor: %w", err)
	}
	number := -1
	var failure error
	err = raw.Control(func(fd uintptr) { number, failure = unix.FcntlInt(fd, unix.F_DUPFD, 3) })
	if err = errors.Join(err, failure); err != nil {
		return -1, fmt.Errorf("cannot duplicate a descriptor: %w", err)
	}
	i.numbers = append(i.numbers, number)
	return number, nil
}

// AddState writes a state as JSON to a memory file, and returns its descriptor in the next image.
func (i *NextImage) AddState(name string, state any) (int, error) {
	content, err := json.Marshal(state)
	if err != nil {
		return -1, fmt.Errorf("cannot encode the state: %w", err)
	}
	number, err := unix.MemfdCreate(name, 0)
	if err != nil {
		return -1, fmt.Errorf("cannot create a memory file: %w", err)
	}
	i.numbers = append(i.numbers, number)
	for offset := 0; offset < len(content); {
		n, err := unix.Pwrite(number, content[offset:], int64(offset))
		if err != nil {
			return -1, fmt.Errorf("cannot write the state: %w", err)
		}
		offset += n
	}
	return number, nil
}

// Close closes the descriptors of the next image.
func (i *NextImage) Close() {
	for _, number := range i.numbers {
		_ = unix.Close(number)
	}
	i.numbers = nil
}

// Exec replaces the program. The next image gets the environment and the arguments of this one,
// and flags with descriptors; flags of these names that this image got itself, and of dropped, are
// left out. Exec returns only on failure.
func (i *NextImage) Exec(program string, descriptors map[string]int, dropped ...string) error {
	err := unix.Exec(program, arguments(os.Args, descriptors, dropped), os.Environ())
	return fmt.Errorf("cannot execute %s: %w", program, err)
}

func arguments(own []string, descriptors map[string]int, dropped []string) []string {
	next := slices.DeleteFunc(slices.Clone(own), func(argument string) bool {
		name, _, isFlag := strings.Cut(strings.TrimLeft(argument, "-"), "=")
		_, passed := descriptors[name]
		return isFlag && argument[0] == '-' && (passed || slices.Contains(dropped, name))
	})
	for name, number := range descriptors {
		next = append(next, "-"+name+"="+strconv.Itoa(number))
	}
	return next
}

// InheritedFile returns a descriptor that the previous image passed. Programs that this one starts
// do not inherit it.
func InheritedFile(number int, name string) *os.File {
	unix.CloseOnExec(number)
	return os.NewFile(uintptr(number), name)
}

// ReadState reads the state of the previous image and closes its file.
func ReadState(file *os.File, state any) error {
	content, err := io.ReadAll(io.NewSectionReader(file, 0, maxState))
	_ = file.Close()
	if err != nil {
		return fmt.Errorf("cannot read the state: %w", err)
	}
	if err := json.Unmarshal(content, state); err != nil {
		return fmt.Errorf("cannot decode the state: %w", err)
	}
	return nil
}
