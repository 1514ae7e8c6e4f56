package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// LaunchOptions describe a keeper that the foreground agent starts.
type LaunchOptions struct {
	Folder string // directory of the keeper and Envoy, with the keeper's socket keeper.sock
	// Binary is the program; "" selects outrider-keeper beside the running program, or else the
	// installed one.
	Binary      string
	BaseID      uint32        // Envoy's --base-id; 0 = a free one
	User        *User         // user of the keeper; nil = the agent's; another one requires root
	IdleTimeout time.Duration // the keeper exits after this time without agent and Envoy; 0 = 1 min
	Stderr      *os.File      // receives the messages of the keeper; nil = discarded
	Env         []string      // environment of the keeper, not of Envoy; nil = the agent's
}

// User is the user that the keeper and Envoy run as.
type User struct {
	UID, GID uint32
	Groups   []uint32 // supplementary groups
}

const (
	defaultIdleExit = time.Minute
	startRetry      = 2 * time.Millisecond

	// installed is the path of the keeper's program in packages.
	installed = "/usr/libexec/outrider/outrider-keeper"

	// oneProcessor is in the keeper's environment, as in its unit: when the keeper calls
	// runtime.GOMAXPROCS the runtime has already allocated 256 KB for each processor.
	oneProcessor = "GOMAXPROCS=1"
)

// StartKeeper connects to the keeper of a folder and starts one if none runs. The keeper runs in a
// session of its own, so it survives the agent. If two keepers are started at the same time, one of
// them cannot lock the folder and exits.
func StartKeeper(ctx context.Context, options LaunchOptions) (*Client, error) {
	folder, err := filepath.Abs(options.Folder)
	if err != nil {
		return nil, fmt.Errorf("find the absolute path of the keeper's folder: %w", err)
	}
	options.Folder = folder
	var exited <-chan *os.ProcessState // receives the exit state of the keeper started below
	for {
		client, err := Dial(ctx, filepath.Join(folder, socketName))
		if err == nil || !errors.Is(err, ErrNotRunning) {
			return client, err
		}
		if exited == nil {
			if exited, err = startProgram(options); err != nil {
				return nil, fmt.Errorf("start the keeper: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("start a keeper in %s: %w", folder, ctx.Err())
		case <-time.After(startRetry):
		}
		select {
		case state := <-exited:
			exited = nil
			// With exitLocked another keeper, which is starting or ending, has the lock: dial
			// again.
			if state.ExitCode() != exitLocked {
				return nil, fmt.Errorf("start the keeper: it exited before it listened (%v)", state)
			}
		default:
		}
	}
}

// startProgram starts the keeper's program. The channel receives its state when it exits.
func startProgram(options LaunchOptions) (<-chan *os.ProcessState, error) {
	binary := options.Binary
	if binary == "" {
		var err error
		if binary, err = findProgram(); err != nil {
			return nil, err
		}
	}
	idle, environment := options.IdleTimeout, options.Env
	if idle == 0 {
		idle = defaultIdleExit
	}
	if environment == nil {
		environment = os.Environ()
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = null.Close() }()
	stderr := options.Stderr
	if stderr == nil {
		stderr = null
	}
	attributes := &os.ProcAttr{
		Dir: "/", Env: append(environment[:len(environment):len(environment)], oneProcessor),
		Files: []*os.File{null, null, stderr},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	}
	if user := options.User; user != nil {
		attributes.Sys.Credential = &syscall.Credential{Uid: user.UID, Gid: user.GID,
			Groups: user.Groups}
		if err := makeFolderOf(user, options.Folder); err != nil {
			return nil, err
		}
	}
	process, err := os.StartProcess(binary, []string{binary, "-folder", options.Folder,
		"-base-id", strconv.FormatUint(uint64(options.BaseID), 10), "-idle-exit", idle.String()},
		attributes)
	if err != nil {
		return nil, err
	}
	exited := make(chan *os.ProcessState, 1)
	go func() {
		state, _ := process.Wait() // the exit code of a nil state is -1
		exited <- state
	}()
	return exited, nil
}

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
		"at one of these paths", beside, installed)
}

// makeFolderOf creates the keeper's folder for its user. It changes the owner by descriptor and not
// by path, because that user may have replaced the folder by a link in the meantime.
func makeFolderOf(user *User, folder string) error {
	if err := makeFolder(folder); err != nil {
		return err
	}
	directory, err := os.OpenFile(folder, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("change the owner of the keeper's folder: %w", err)
	}
	defer func() { _ = directory.Close() }()
	if err := directory.Chown(int(user.UID), int(user.GID)); err != nil {
		return fmt.Errorf("change the owner of the keeper's folder: %w", err)
	}
	return nil
}
