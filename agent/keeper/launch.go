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
	Folder string // the keeper's and Envoy's; its socket is keeper.sock in it
	// Binary is the program; "" selects outrider-keeper beside the running program, or else the
	// installed one.
	Binary   string
	BaseID   uint32        // Envoy's --base-id; 0 = a free one
	User     *User         // nil = the agent's own; another one needs root
	IdleExit time.Duration // how long a keeper without agent and Envoy stays; 0 = a minute
	Stderr   *os.File      // for the messages of the keeper; nil = discarded
	Env      []string      // of the keeper itself, not of Envoy; nil = the agent's
}

// User is the user that the keeper and Envoy run as.
type User struct {
	UID, GID uint32
	Groups   []uint32 // supplementary
}

const (
	defaultIdleExit = time.Minute
	startRetry      = 20 * time.Millisecond
)

// StartKeeper connects to the keeper of a folder and starts one if none runs. The keeper has its
// own session, so it survives the agent.
func StartKeeper(ctx context.Context, options LaunchOptions) (*Client, error) {
	folder, err := filepath.Abs(options.Folder)
	if err != nil {
		return nil, fmt.Errorf("the keeper's folder: %w", err)
	}
	options.Folder = folder
	socket := filepath.Join(folder, socketName)
	for {
		client, err := Dial(ctx, socket)
		if err == nil || !errors.Is(err, ErrNotRunning) {
			return client, err
		}
		// The keeper inherits the lock, so two agents start one keeper between them.
		lock, err := lockFolder(options.Folder)
		if err == nil {
			err = startProgram(options, socket, lock)
			_ = lock.Close()
			if err != nil {
				return nil, err
			}
			return Dial(ctx, socket)
		}
		if !errors.Is(err, errLocked) {
			return nil, err
		}
		select { // a keeper that is about to listen, or about to end
		case <-ctx.Done():
			return nil, fmt.Errorf("start a keeper in %s: %w: %w", options.Folder, ctx.Err(), err)
		case <-time.After(startRetry):
		}
	}
}

// startProgram starts the program with a socket that listens already, so that connecting succeeds at
// once.
func startProgram(options LaunchOptions, socket string, lock *os.File) error {
	binary := options.Binary
	if binary == "" {
		var err error
		if binary, err = findProgram(); err != nil {
			return err
		}
	}
	listener, err := listenPrivately(socket)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	listening, err := listener.File()
	if err != nil {
		return fmt.Errorf("start %s: %w", binary, err)
	}
	defer func() { _ = listening.Close() }()
	idle := options.IdleExit
	if idle == 0 {
		idle = defaultIdleExit
	}
	const listenFD, lockFD = "3", "4"
	arguments := []string{"-folder", options.Folder, "-socket", socket,
		"-base-id", strconv.FormatUint(uint64(options.BaseID), 10), "-idle-exit", idle.String(),
		"-" + flagListen, listenFD, "-" + flagLock, lockFD}
	var credential *syscall.Credential
	if user := options.User; user != nil {
		credential = &syscall.Credential{Uid: user.UID, Gid: user.GID, Groups: user.Groups}
		if err := chownFolder(options.Folder, lock, user); err != nil {
			return err
		}
	}
	command := append([]string{binary}, arguments...)
	if err := spawn(command, options.environment(), options.Stderr, credential, listening,
		lock); err != nil {
		_ = os.Remove(socket)
		return fmt.Errorf("start the keeper: %w", err)
	}
	return nil
}

func (o LaunchOptions) environment() []string {
	if o.Env != nil {
		return o.Env
	}
	return os.Environ()
}

// chownFolder makes the keeper's user the owner of a folder that root created. It uses descriptors:
// that user may have replaced the names in it.
func chownFolder(folder string, lock *os.File, user *User) error {
	directory, err := os.OpenFile(folder, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("give the keeper its folder: %w", err)
	}
	defer func() { _ = directory.Close() }()
	for _, file := range []*os.File{directory, lock} {
		if err := file.Chown(int(user.UID), int(user.GID)); err != nil {
			return fmt.Errorf("give the keeper its folder: %w", err)
		}
	}
	return nil
}
