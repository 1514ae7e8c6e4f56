// Package reexec replaces a running program by the installed one, in the same process (execve). The
// next image of the process inherits descriptors. It receives their numbers in flags, or in a
// state: JSON in a memory file (memfd).
//
// Flags and the format of a state are an interface between versions, because an upgrade or
// downgrade replaces a program by another version.
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

// maxState bounds the size of a state that is read, in bytes.
const maxState = 1 << 30

// InstalledProgram returns the path from which this program was started. The file at that path may
// be newer than this program.
func InstalledProgram() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("cannot find the path of this program: %w", err)
	}
	return strings.TrimSuffix(path, " (deleted)"), nil
}

// NextImage collects the descriptors that the next image inherits. If Exec is not called or fails,
// the caller must call Close.
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

// AddState writes a state as JSON to a memory file, and returns the number of its descriptor in the
// next image.
func (i *NextImage) AddState(name string, state any) (int, error) {
	content, err := json.Marshal(state)
	if err != nil {
		return -1, fmt.Errorf("cannot encode the state for the next program: %w", err)
	}
	number, err := unix.MemfdCreate(name, 0)
	if err != nil {
		return -1, fmt.Errorf("cannot create a memory file for the state: %w", err)
	}
	i.numbers = append(i.numbers, number)
	for offset := 0; offset < len(content); {
		n, err := unix.Pwrite(number, content[offset:], int64(offset))
		if err != nil {
			return -1, fmt.Errorf("cannot write the state for the next program: %w", err)
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

// Exec replaces the running program. The next image has the same environment and arguments, and a
// flag -NAME=NUMBER for each of descriptors. Existing flags with these names, and those in dropped,
// are removed. Exec returns only on failure.
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

// InheritedFile returns a descriptor that the previous image passed. It sets close-on-exec, so that
// child processes do not inherit the descriptor.
func InheritedFile(number int, name string) *os.File {
	unix.CloseOnExec(number)
	return os.NewFile(uintptr(number), name)
}

// ReadState decodes the state that the previous image stored in file, and closes the file.
func ReadState(file *os.File, state any) error {
	content, err := io.ReadAll(io.NewSectionReader(file, 0, maxState))
	_ = file.Close()
	if err != nil {
		return fmt.Errorf("cannot read the state of the previous program: %w", err)
	}
	if err := json.Unmarshal(content, state); err != nil {
		return fmt.Errorf("cannot decode the state of the previous program: %w", err)
	}
	return nil
}
