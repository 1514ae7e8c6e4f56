package keeper

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/reexec"
)

// Exit codes of the keeper.
const (
	exitFailed = 1
	exitUsage  = 2
	exitLocked = 3 // another keeper lives in the folder
)

// Main runs outrider-keeper and returns its exit code. It must be called by the main goroutine,
// locked to the main thread by an init function.
func Main(arguments []string, version string, stdout, stderr io.Writer) int {
	// One thread for Go code reduces memory and wake-ups of an idle keeper; the explicit setting
	// also stops the runtime from polling the cgroup's CPU limit. Garbage collection at 1 MB
	// instead of 4 MB has no measurable cost.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(25)

	options := Options{Version: version, Log: stderr}
	flags := flag.NewFlagSet("outrider-keeper", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var baseID uint64
	var stateFD, takes int
	var showVersion bool
	flags.StringVar(&options.Folder, "folder", "",
		"`folder` of the keeper's and Envoy's sockets (default $RUNTIME_DIRECTORY, else "+
			"/run/outrider-envoy)")
	flags.StringVar(&options.Socket, "socket", "",
		"`path` where agents connect (default keeper.sock in the folder; unused with a socket "+
			"handed in by systemd)")
	flags.Uint64Var(&baseID, "base-id", 0, "Envoy's --base-id; 0 = one that is free")
	flags.IntVar(&options.AllowedUID, "allow-uid", -1,
		"a `user` who may connect too, beside root, the keeper's own user and the socket's owner")
	flags.DurationVar(&options.IdleTimeout, "idle-exit", 0,
		"exit after this `time` without an agent and without an Envoy; 0 = never")
	flags.IntVar(&stateFD, flagState, -1, "the state of the previous image (internal)")
	flags.IntVar(&takes, flagTakes, 0,
		"exit 0 if this program reads states of this `format` (internal)")
	flags.BoolVar(&showVersion, "version", false, "print the version")
	switch err := flags.Parse(arguments); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return exitUsage
	case flags.NArg() > 0:
		return fail(stderr, exitUsage, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	case baseID > maxBaseID:
		return fail(stderr, exitUsage, fmt.Errorf("-base-id %d is too large: at most %d", baseID,
			maxBaseID))
	case showVersion:
		_, _ = fmt.Fprintf(stdout, "outrider-keeper %s (protocol %d)\n", version, protocolVersion)
		return 0
	case takes > stateFormat:
		return fail(stderr, exitFailed,
			fmt.Errorf("this program reads the keeper's state up to format %d, not format %d",
				stateFormat,
				takes))
	case takes > 0:
		return 0
	}
	// Envoy runs as the same user and must not control the keeper by ptrace or /proc/PID/mem.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fail(stderr, exitFailed, fmt.Errorf("set PR_SET_DUMPABLE to 0: %w", err))
	}
	options.BaseID = uint32(baseID)
	if options.Folder == "" {
		if options.Folder = os.Getenv("RUNTIME_DIRECTORY"); options.Folder == "" {
			options.Folder = "/run/outrider-envoy"
		}
	}
	var state *os.File
	if stateFD >= 0 {
		state = reexec.InheritedFile(stateFD, "state")
	} else {
		options.Listener = activated()
	}
	if options.Socket == "" && !isActivated() {
		options.Socket = filepath.Join(options.Folder, socketName)
	}
	switch err := Serve(options, state); {
	case errors.Is(err, errLocked):
		return fail(stderr, exitLocked, err)
	case err != nil:
		return fail(stderr, exitFailed, err)
	}
	return 0
}

func fail(stderr io.Writer, code int, err error) int {
	_, _ = fmt.Fprintf(stderr, "outrider-keeper: %v\n", err)
	return code
}

// activated returns the listening socket that systemd passed (sd_listen_fds), or nil.
func activated() *os.File {
	const first = 3
	if !isActivated() {
		return nil
	}
	return reexec.InheritedFile(first, "listener")
}

func isActivated() bool {
	count, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	return os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) && err == nil && count > 0
}

// socketName is the default name of the keeper's socket in its folder.
const socketName = "keeper.sock"
