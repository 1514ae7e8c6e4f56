// Package prestart starts a keeper before it is known what for: while Go initialises the agent's packages, which takes longer than
// the keeper's whole start and leaves the other processors idle. The keeper waits at a socket for its arguments (HandOver, Await) and
// ends when that is closed, so that an agent which needs none, or fails before, leaves nothing behind.
//
// It is a leaf that needs hardly more than os and syscall. Go initialises a package as soon as all that it imports is, so a program
// that calls Begin in an init function of a package that imports nothing else calls it first of all.
package prestart

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// Installed is where packages put the keeper's program.
const Installed = "/usr/libexec/outrider/outrider-keeper"

// FlagAwait and FlagFor are the keeper's: the descriptor where its arguments come, and the configuration or instance of the agent that
// started it, which only ps shows.
const (
	FlagAwait = "await-fd"
	FlagFor   = "for"
)

// awaitFD is the descriptor in the keeper: the one after standard error.
const awaitFD = "3"

var (
	begun   chan struct{}   // nil: Begin was not called; closed once it is known what became of it
	control *os.File        // this side of the socket; nil: there is no keeper
	ended   <-chan struct{} // closed once that keeper has ended
)

// Begin starts a keeper if these arguments of outriderd will want one: in the foreground, where it is to serve. It does not wait. What
// goes wrong is left to those who start a keeper in the ordinary way.
func Begin(arguments []string, environment func(string) string) {
	configuration, ok := serves(arguments)
	if !ok || environment("INVOCATION_ID") != "" && environment("NOTIFY_SOCKET") != "" {
		return
	}
	begun = make(chan struct{})
	go func() {
		defer close(begun)
		control, _ = start(configuration)
	}()
}

// serves tells whether outriderd is to serve: nothing but the name of a configuration, or of an instance, is given.
func serves(arguments []string) (configuration string, ok bool) {
	for i := 0; i < len(arguments); i++ {
		name := arguments[i]
		for len(name) > 0 && name[0] == '-' && len(arguments[i])-len(name) < 2 {
			name = name[1:]
		}
		switch {
		case len(name) == len(arguments[i]):
			return "", false
		case begins(name, "config="):
			configuration = name[len("config="):]
		case begins(name, "instance="):
			configuration = name[len("instance="):]
		case name != "config" && name != "instance":
			return "", false
		default:
			if i++; i < len(arguments) {
				configuration = arguments[i]
			}
		}
	}
	return configuration, true
}

func begins(text, with string) bool { return len(text) >= len(with) && text[:len(with)] == with }

// Find is the keeper's program: beside the running program, else where packages put it.
func Find() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", errors.New("find outrider-keeper: " + err.Error())
	}
	folder := len(self)
	for folder > 0 && self[folder-1] != '/' {
		folder--
	}
	const executable = 1 // X_OK
	beside := self[:folder] + "outrider-keeper"
	for _, path := range []string{beside, Installed} {
		if syscall.Access(path, executable) == nil {
			return path, nil
		}
	}
	return "", errors.New("find outrider-keeper: neither " + beside + " nor " + Installed + " can be executed; install it there")
}

func start(configuration string) (*os.File, error) {
	program, err := Find()
	if err != nil {
		return nil, err
	}
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(ends[0]), "keeper in waiting"), os.NewFile(uintptr(ends[1]), "agent")
	defer func() { _ = theirs.Close() }()
	command := []string{program, "-" + FlagAwait, awaitFD}
	if configuration != "" {
		command = append(command, "-"+FlagFor, configuration)
	}
	if ended, err = Start(command, os.Environ(), os.Stderr, nil, theirs); err != nil {
		_ = ours.Close()
		return nil, err
	}
	return ours, nil
}

// oneProcessor is in the environment of a keeper, as in its unit: the keeper says so too, but by then Go's runtime has what belongs to
// each processor, a quarter of a megabyte for a second one.
const oneProcessor = "GOMAXPROCS=1"

// Start runs the keeper's program, in a session of its own: it outlives the agent, kill -9 included. Files come after standard error.
// credential is whom it runs as, nil the agent's user. What it returns is closed when the keeper has ended.
func Start(command, environment []string, stderr *os.File, credential *syscall.Credential, files ...*os.File) (<-chan struct{}, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = null.Close() }()
	if stderr == nil {
		stderr = null
	}
	descriptors := []uintptr{null.Fd(), null.Fd(), stderr.Fd()}
	for _, file := range files {
		descriptors = append(descriptors, file.Fd())
	}
	// Not os.StartProcess: before the first process that a program starts, it starts another to see what the kernel can do.
	pid, err := syscall.ForkExec(command[0], command, &syscall.ProcAttr{
		Dir: "/", Env: append(environment[:len(environment):len(environment)], oneProcessor), Files: descriptors,
		Sys: &syscall.SysProcAttr{Setsid: true, Credential: credential},
	})
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() { // as long as the keeper lives, so that it leaves no zombie
		defer close(ended)
		_, _ = syscall.Wait4(pid, nil, 0, nil)
	}()
	return ended, nil
}

// Take is this side of the socket of the keeper that waits, whose owner the caller becomes; nil if none does.
func Take() *os.File {
	if begun == nil {
		return nil
	}
	<-begun
	waiting := control
	control = nil
	return waiting
}

// dismissal is how long Dismiss waits for a keeper to end: it does so in a millisecond, but not on a machine that stands still.
const dismissal = 3 * time.Second

// Dismiss ends the keeper that waits, if nobody took it, and reaps it: the agent ends, and who started that may not reap what it leaves.
func Dismiss() {
	waiting := Take()
	if waiting == nil {
		return
	}
	_ = waiting.Close()
	select {
	case <-ended:
	case <-time.After(dismissal):
	}
}
