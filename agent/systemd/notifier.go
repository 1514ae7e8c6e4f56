// Package systemd tells the service manager how the agent stands (sd_notify(3)), feeds its watchdog, and asks it why the
// agent is being stopped. Without a service manager all of it does nothing.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// State is what the agent does, in the words that the bus shows too (interfaces.md, property State).
type State string

// The states.
const (
	Starting  State = "starting"  // Envoy has not been live and configured yet
	Running   State = "running"   // it has; the first time tells systemd that the unit is started
	Reloading State = "reloading" // a reload is under way
	Draining  State = "draining"  // Envoy drains as it was told to, and the agent goes on
	Stopping  State = "stopping"  // the agent ends; nothing but Failed follows
	Failed    State = "failed"    // the agent ends because of an error
)

// lasts is whether a state is a phase that may take longer than the time-outs of the unit.
func (s State) lasts() bool {
	return s == Starting || s == Reloading || s == Draining || s == Stopping
}

// Options of a Notifier.
type Options struct {
	Environment func(string) string             // os.Getenv: NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID
	Beat        func(ctx context.Context) error // returns once the control loop has turned; nil: not asked
	Logger      *slog.Logger
}

// Notifier tells the service manager one value, state and sentence, at every change of it. No method blocks: what the
// manager's socket does not take at once is kept, newest first to count, and tried again by Run and by every later message.
type Notifier struct {
	address  string // of the manager's socket; "" = there is no manager
	watchdog time.Duration
	beat     func(ctx context.Context) error
	log      *slog.Logger

	mu        sync.Mutex
	socket    int // -1 = none
	state     State
	sentence  string
	announced bool // READY=1 was told once
	pending   []message
	refused   error         // why the last attempt to send failed, told once
	retry     chan struct{} // holds one: something is pending
}

// New returns a notifier of the manager that the environment names. It has told nothing yet.
func New(options Options) *Notifier {
	n := &Notifier{address: options.Environment("NOTIFY_SOCKET"), beat: options.Beat, log: options.Logger, socket: -1, retry: make(chan struct{}, 1)}
	if n.beat == nil {
		n.beat = func(context.Context) error { return nil }
	}
	n.watchdog = watchdogInterval(options.Environment)
	if n.address == "" {
		return n
	}
	if n.address[0] != '/' && n.address[0] != '@' {
		n.log.Warn("systemd cannot be notified: NOTIFY_SOCKET is no Unix socket", "socket", n.address)
		n.address = ""
		return n
	}
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		n.log.Warn("systemd cannot be notified", "error", fmt.Errorf("make a socket: %w", err))
		n.address = ""
		return n
	}
	n.socket = socket
	return n
}

// watchdogInterval is how often the manager wants to hear of this process; 0 is never (sd_watchdog_enabled(3)).
func watchdogInterval(environment func(string) string) time.Duration {
	if pid := environment("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	microseconds, err := strconv.ParseInt(environment("WATCHDOG_USEC"), 10, 64)
	if err != nil || microseconds <= 0 || microseconds > int64(time.Duration(1<<63-1)/time.Microsecond) {
		return 0
	}
	return time.Duration(microseconds) * time.Microsecond
}

// Set tells what the agent does now, and in one sentence how that goes; the same again is not told. The first Running (or
// Draining: an Envoy that was adopted while it drains) says that the unit is started, each Reloading that it reloads and
// what follows that it has done so, however the reload ended. Stopping ends it: what is set later counts only as its sentence.
func (n *Notifier) Set(state State, sentence string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state == Stopping || n.state == Failed {
		state = n.state
	}
	if state == n.state && sentence == n.sentence {
		return
	}
	var lines []string
	if state != n.state {
		lines = n.transition(state)
	}
	n.state, n.sentence = state, sentence
	kind := statusKind
	if len(lines) > 0 {
		kind = stateKind
	}
	n.post(kind, append(lines, "STATUS="+oneLine(sentence))...)
}

// transition is what a change of state tells beside the sentence.
func (n *Notifier) transition(state State) []string {
	var lines []string
	switch {
	case state == Reloading && n.announced:
		lines = append(lines, "RELOADING=1", "MONOTONIC_USEC="+strconv.FormatInt(monotonic().Microseconds(), 10))
	case (state == Running || state == Draining) && (!n.announced || n.state == Reloading):
		n.announced = true
		lines = append(lines, "READY=1")
	case state == Stopping:
		lines = append(lines, "STOPPING=1")
	}
	if state.lasts() {
		lines = append(lines, n.extended()...)
	}
	return lines
}

// Announced is whether the manager was told that the unit is started.
func (n *Notifier) Announced() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.announced
}

// Fail tells that the agent ends because of an error: in words, and with its number (ERRNO=) or its name on the bus (BUSERROR=)
// where it has one.
func (n *Notifier) Fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state, n.sentence = Failed, err.Error()
	lines := []string{"STATUS=" + oneLine(n.sentence)}
	if errno, ok := errors.AsType[syscall.Errno](err); ok && errno != 0 {
		lines = append(lines, "ERRNO="+strconv.Itoa(int(errno)))
	}
	if onBus, ok := errors.AsType[dbus.Error](err); ok && onBus.Name != "" {
		lines = append(lines, "BUSERROR="+oneLine(onBus.Name))
	}
	n.post(stateKind, lines...)
}

// monotonic is the time of CLOCK_MONOTONIC, which systemd compares with.
func monotonic() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0 // every Linux has it
	}
	return time.Duration(now.Nano())
}

// longestLine bounds a line: systemd takes messages of up to a page (NOTIFY_BUFFER_MAX in src/core/manager.c is PIPE_BUF).
const longestLine = 1024

// oneLine is a text as the value of a variable: without line breaks, in valid UTF-8, not too long.
func oneLine(text string) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' || r == 0 }), " ")
	if len(text) > longestLine {
		text = text[:longestLine-len("…")]
		text = strings.ToValidUTF8(text, "") + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
