// Package systemd notifies the service manager of the agent's state (sd_notify(3)), feeds its
// watchdog, and queries the job that stops the agent. Notifications are no-ops without a service
// manager.
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

	"outrider.org/outrider/agent/lifecycle"
)

// State is the state of the agent, with the same values as the D-Bus property State.
type State string

// The states of the agent.
const (
	StateStarting  State = "starting"  // Envoy is not yet live and configured
	StateRunning   State = "running"   // Envoy is live; the first time sends READY=1
	StateReloading State = "reloading" // a reload is under way
	StateDraining  State = "draining"  // requested drain; the agent continues running
	StateStopping  State = "stopping"  // the agent stops; only StateFailed may follow
	StateFailed    State = "failed"    // the agent stops because of an error
)

// lasts reports whether a state may outlast the timeouts of the unit.
func (s State) lasts() bool {
	return s == StateStarting || s == StateReloading || s == StateDraining || s == StateStopping
}

// Options configure a Notifier.
type Options struct {
	// Environment looks up NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, usually os.Getenv.
	Environment func(string) string
	// Ping returns once the control loop responds; nil: always alive.
	Ping   func(ctx context.Context) error
	Logger *slog.Logger
}

// Notifier sends the agent's state and a status sentence to the service manager when they change.
// No method except Run and Close blocks: messages that the manager's socket does not accept are
// queued, and Run and later messages retry them.
type Notifier struct {
	lifecycle.Readiness
	address  string // address of the manager's socket; "" = no manager
	watchdog time.Duration
	ping     func(ctx context.Context) error
	log      *slog.Logger

	mu        sync.Mutex
	socket    int // -1 = none
	state     State
	sentence  string
	announced bool // READY=1 was sent
	pending   []message
	refused   error         // error of the last failed attempt, logged once
	retry     chan struct{} // capacity 1: messages are pending
}

// NewNotifier returns a notifier for the manager in the environment. It sends nothing yet.
func NewNotifier(options Options) *Notifier {
	n := &Notifier{address: options.Environment("NOTIFY_SOCKET"), ping: options.Ping,
		log: options.Logger, socket: -1, retry: make(chan struct{}, 1)}
	if n.ping == nil {
		n.ping = func(context.Context) error { return nil }
	}
	n.watchdog = watchdogInterval(options.Environment)
	if n.address == "" {
		return n
	}
	if n.address[0] != '/' && n.address[0] != '@' {
		n.log.Warn("cannot notify systemd: NOTIFY_SOCKET is not the address of a Unix socket",
			"socket", n.address)
		n.address = ""
		return n
	}
	socket, err := unix.Socket(unix.AF_UNIX,
		unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		n.log.Warn("cannot notify systemd", "error", fmt.Errorf("create a socket: %w", err))
		n.address = ""
		return n
	}
	n.socket = socket
	return n
}

// watchdogInterval returns the watchdog's interval, or 0 if it is disabled for this process
// (sd_watchdog_enabled(3)).
func watchdogInterval(environment func(string) string) time.Duration {
	if pid := environment("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	microseconds, err := strconv.ParseInt(environment("WATCHDOG_USEC"), 10, 64)
	if err != nil || microseconds <= 0 ||
		microseconds > int64(time.Duration(1<<63-1)/time.Microsecond) {
		return 0
	}
	return time.Duration(microseconds) * time.Microsecond
}

// SetState sets the state and a one-sentence status, and notifies the manager if they changed.
// READY=1 is sent with the first StateRunning (or StateDraining, for an Envoy adopted while it
// drains) and after each reload, whatever its outcome. After StateStopping or StateFailed the state
// no longer changes, only the sentence.
func (n *Notifier) SetState(state State, sentence string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state == StateStopping || n.state == StateFailed {
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

// transition returns the lines to send for a change of state, in addition to STATUS=.
func (n *Notifier) transition(state State) []string {
	var lines []string
	switch {
	case state == StateReloading && n.announced:
		lines = append(lines, "RELOADING=1",
			"MONOTONIC_USEC="+strconv.FormatInt(monotonic().Microseconds(), 10))
	case (state == StateRunning || state == StateDraining) &&
		(!n.announced || n.state == StateReloading):
		n.announced = true
		lines = append(lines, "READY=1")
	case state == StateStopping:
		lines = append(lines, "STOPPING=1")
	}
	if state.lasts() {
		lines = append(lines, n.extended()...)
	}
	return lines
}

// ReadySent reports whether READY=1 was sent.
func (n *Notifier) ReadySent() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.announced
}

// Fail sets the state StateFailed and sends the error's text with its errno (ERRNO=) or D-Bus name
// (BUSERROR=), if any.
func (n *Notifier) Fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state, n.sentence = StateFailed, err.Error()
	lines := []string{"STATUS=" + oneLine(n.sentence)}
	if errno, ok := errors.AsType[syscall.Errno](err); ok && errno != 0 {
		lines = append(lines, "ERRNO="+strconv.Itoa(int(errno)))
	}
	if onBus, ok := errors.AsType[dbus.Error](err); ok && onBus.Name != "" {
		lines = append(lines, "BUSERROR="+oneLine(onBus.Name))
	}
	n.post(stateKind, lines...)
}

// monotonic returns CLOCK_MONOTONIC, which RELOADING=1 requires.
func monotonic() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0 // cannot fail on Linux
	}
	return time.Duration(now.Nano())
}

// longestLine is the maximum length of a line in bytes. systemd accepts messages up to PIPE_BUF
// (NOTIFY_BUFFER_MAX in src/core/manager.c).
const longestLine = 1024

// oneLine converts text to a value for sd_notify: valid UTF-8, lines separated by "; ", truncated.
func oneLine(text string) string {
	var line strings.Builder
	for next := range strings.FieldsFuncSeq(text,
		func(r rune) bool { return r == '\n' || r == '\r' || r == 0 }) {
		switch so := line.String(); {
		case so == "":
		case strings.HasSuffix(so, ":") || strings.HasSuffix(so, ";"):
			line.WriteByte(' ')
		default:
			line.WriteString("; ")
		}
		line.WriteString(strings.TrimSpace(next))
	}
	text = line.String()
	if len(text) > longestLine {
		text = text[:longestLine-len("…")]
		text = strings.ToValidUTF8(text, "") + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
