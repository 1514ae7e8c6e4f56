package keeper

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// installed is the path of the keeper's program in packages.
const installed = "/usr/libexec/outrider/outrider-keeper"

// findProgram returns the path of the keeper's program: beside the running program, else installed.
func findProgram() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find outrider-keeper: %w", err)
	}
	beside := filepath.Join(filepath.Dir(self), "outrider-keeper")
	for _, path := range []string{beside, installed} {
		if unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("find outrider-keeper: neither %s nor %s can be executed; install it "+
		"there",
		beside, installed)
}

// oneProcessor is in the keeper's environment, as in its unit: when the keeper calls
// runtime.GOMAXPROCS the runtime has already allocated 256 KB for each processor.
const oneProcessor = "GOMAXPROCS=1"

// spawn starts the keeper's program in its own session, so that it survives the agent. files become
// descriptors 3 and up. A nil credential means the agent's user.
func spawn(command, environment []string, stderr *os.File, credential *syscall.Credential,
	files ...*os.File) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	if stderr == nil {
		stderr = null
	}
	attributes := &os.ProcAttr{
		Dir: "/", Env: append(environment[:len(environment):len(environment)], oneProcessor),
		Files: append([]*os.File{null, null, stderr}, files...),
		Sys:   &syscall.SysProcAttr{Setsid: true, Credential: credential},
	}
	process, err := os.StartProcess(command[0], command, attributes)
	if err != nil {
		return err
	}
	go func() { _, _ = process.Wait() }() // reap it if it exits before the agent does
	return nil
}
