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
	outputRead = 256 // bytes of a command's output that its error has
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

// Exec runs a command, whose program is at path. It succeeds with exit status 0. At the end of ctx
// it is killed. Processes of its group that it leaves behind are killed, too. Its environment is
// PATH, HOME and LANG.
func Exec(ctx context.Context, path string, arguments []string) error {
	var output limited
	command := exec.CommandContext(ctx, path)
	command.Args = arguments
	command.Stdout, command.Stderr = &output, &output
	command.Env = []string{} // nil is the environment of the agent
	for _, name := range []string{"PATH", "HOME", "LANG"} {
		if value, ok := os.LookupEnv(name); ok {
			command.Env = append(command.Env, name+"="+value)
		}
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kill := func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.Cancel = kill
	command.WaitDelay = outputWait // a process outside the group may have the pipe
	err := command.Run()
	if command.Process != nil {
		_ = kill() // an error if nothing is left
	}
	if text := strings.TrimSpace(string(output.text)); err != nil && text != "" {
		err = fmt.Errorf("%w: %s", err, strings.ToValidUTF8(text, "?"))
	}
	return err
}

// limited holds the first bytes of an output.
type limited struct{ text []byte }

// Write implements io.Writer.
func (l *limited) Write(p []byte) (int, error) {
	l.text = append(l.text, p[:min(len(p), outputRead-len(l.text))]...)
	return len(p), nil
}
