package execprobe

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"outrider.org/outrider/agent/ownership"
)

const (
	outputRead = 256 // bytes of a command's output that an error quotes
	outputWait = time.Second
)

// Find returns the absolute path of program. A name without a slash is searched for in $PATH. The
// error is fs.ErrNotExist or exec.ErrNotFound if the program does not exist. Find also fails if a
// user other than owners could replace the program.
func Find(program string, owners ...int) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", err
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", err
	}
	return path, ownership.CheckPath(path, owners...)
}

// Exec runs the program at path and returns nil if its exit status is 0. At the end of ctx it kills
// the program's process group. It also kills processes of the group that outlive the program. The
// environment is PATH, HOME and LANG.
func Exec(ctx context.Context, path string, arguments []string) error {
	var output limited
	command := exec.CommandContext(ctx, path)
	command.Args = arguments
	command.Stdout, command.Stderr = &output, &output
	// not nil, with which the command would inherit the agent's environment
	command.Env = []string{}
	for _, name := range []string{"PATH", "HOME", "LANG"} {
		if value, ok := os.LookupEnv(name); ok {
			command.Env = append(command.Env, name+"="+value)
		}
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kill := func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.Cancel = kill
	command.WaitDelay = outputWait // a process outside the group may hold the output pipe open
	err := command.Run()
	if command.Process != nil {
		_ = kill() // fails if no process of the group is left
	}
	if text := strings.TrimSpace(string(output.text)); err != nil && text != "" {
		err = fmt.Errorf("%w: %s", err, strings.ToValidUTF8(text, "?"))
	}
	return err
}

// limited is a writer that stores the first outputRead bytes and discards the rest.
type limited struct{ text []byte }

// Write implements io.Writer.
func (l *limited) Write(p []byte) (int, error) {
	l.text = append(l.text, p[:min(len(p), outputRead-len(l.text))]...)
	return len(p), nil
}
