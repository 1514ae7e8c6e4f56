package systemd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"outrider.org/outrider/scripts/parts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// manager is a fake service manager.
type manager struct {
	t      *testing.T
	path   string
	socket *net.UnixConn
}

func newManager(t *testing.T) *manager {
	t.Helper()
	m := &manager{t: t, path: filepath.Join(parts.ShortDir(t), "notify")}
	m.listen()
	return m
}

func (m *manager) listen() {
	m.t.Helper()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"})
	if err != nil {
		m.t.Fatal(err)
	}
	m.socket = socket
	m.t.Cleanup(func() { _ = socket.Close() })
}

// next returns the lines of the next message.
func (m *manager) next() []string {
	m.t.Helper()
	lines, ok := m.within(10 * time.Second)
	if !ok {
		m.t.Fatal("no message came")
	}
	return lines
}

func (m *manager) within(limit time.Duration) ([]string, bool) {
	m.t.Helper()
	_ = m.socket.SetReadDeadline(time.Now().Add(limit))
	buffer := make([]byte, 8192)
	n, err := m.socket.Read(buffer)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, false
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return strings.Split(string(buffer[:n]), "\n"), true
}

// quiet checks that no message is pending: sent messages are readable when the sender returns.
func (m *manager) quiet() {
	m.t.Helper()
	if lines, ok := m.within(time.Millisecond); ok {
		m.t.Fatalf("unexpected message: %q", lines)
	}
}

func (m *manager) environment(more ...string) func(string) string {
	return func(name string) string {
		if name == "NOTIFY_SOCKET" {
			return m.path
		}
		for _, pair := range more {
			if value, ok := strings.CutPrefix(pair, name+"="); ok {
				return value
			}
		}
		return ""
	}
}

func newNotifier(t *testing.T, options Options) *Notifier {
	t.Helper()
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	n := NewNotifier(options)
	t.Cleanup(func() { n.Close(t.Context()) })
	return n
}

func run(t *testing.T, n *Notifier) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := n.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
}

// Each transition sends one datagram. MONOTONIC_USEC is checked separately.
func TestSet(t *testing.T) {
	const extended = "EXTEND_TIMEOUT_USEC=30000000"
	m := newManager(t)
	n := newNotifier(t, Options{Environment: m.environment()})
	for i, step := range []struct {
		state    State
		sentence string
		want     []string // nil: no message
	}{
		{StateStarting, "waiting for /etc/cert.pem", []string{extended, "STATUS=waiting for /etc/cert.pem"}},
		{StateStarting, "waiting for /etc/cert.pem", nil},
		{StateStarting, "epoch 0 is starting", []string{"STATUS=epoch 0 is starting"}},
		{StateReloading, "reading anew",
			[]string{extended, "STATUS=reading anew"}}, // no RELOADING=1 before READY=1
		{StateStarting, "epoch 0 is starting", []string{extended, "STATUS=epoch 0 is starting"}},
		{StateRunning, "epoch 0 serves", []string{"READY=1", "STATUS=epoch 0 serves"}},
		{StateRunning, "epoch 0 does not answer", []string{"STATUS=epoch 0 does not answer"}},
		{StateReloading, "epoch 1 is starting", []string{"RELOADING=1", extended, "STATUS=epoch 1 is starting"}},
		{StateRunning, "refused; epoch 0 continues serving\nreally",
			[]string{"READY=1", "STATUS=refused; epoch 0 continues serving; really"}},
		{StateDraining, "told to drain", []string{extended, "STATUS=told to drain"}},
		{StateReloading, "again", []string{"RELOADING=1", extended, "STATUS=again"}},
		{StateDraining, "still", []string{"READY=1", extended, "STATUS=still"}},
		{StateRunning, "back", []string{"STATUS=back"}},
		{StateStopping, "3 connections left", []string{"STOPPING=1", extended, "STATUS=3 connections left"}},
		{StateRunning, "2 connections left", []string{"STATUS=2 connections left"}},
	} {
		before := monotonic()
		n.SetState(step.state, step.sentence)
		if step.want == nil {
			m.quiet()
			continue
		}
		var got []string
		for _, line := range m.next() {
			if text, ok := strings.CutPrefix(line, "MONOTONIC_USEC="); ok {
				micros, err := strconv.ParseInt(text, 10, 64)
				if at := time.Duration(micros) * time.Microsecond; err != nil ||
					at < before-time.Millisecond || at > monotonic() {
					t.Errorf("step %d: MONOTONIC_USEC=%s, asked at %v", i, text, before)
				}
				continue
			}
			got = append(got, line)
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("step %d (-want +got):\n%s", i, diff)
		}
	}
	m.quiet()
}

// The agent is ready (READY=1) when it adopts a draining Envoy.
func TestDrainingIsStarted(t *testing.T) {
	m := newManager(t)
	n := newNotifier(t, Options{Environment: m.environment()})
	n.SetState(StateDraining, "adopted")
	if got := m.next(); got[0] != "READY=1" {
		t.Errorf("%q", got)
	}
}

func TestFail(t *testing.T) {
	for _, c := range []struct {
		err  error
		want []string
	}{
		{errors.New("all is lost"), []string{"STATUS=all is lost"}},
		{fmt.Errorf("listen: %w", syscall.EADDRINUSE), []string{"STATUS=listen: address already in use", "ERRNO=98"}},
		{fmt.Errorf("bus: %w",
			dbus.Error{Name: "org.freedesktop.DBus.Error.AccessDenied", Body: []any{"no"}}),
			[]string{"STATUS=bus: no", "BUSERROR=org.freedesktop.DBus.Error.AccessDenied"}},
	} {
		m := newManager(t)
		n := newNotifier(t, Options{Environment: m.environment()})
		n.Fail(c.err)
		if diff := cmp.Diff(c.want, m.next()); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.err, diff)
		}
	}
}

func TestLongSentence(t *testing.T) {
	m := newManager(t)
	n := newNotifier(t, Options{Environment: m.environment()})
	n.SetState(StateRunning, strings.Repeat("ä", 5000)+"\xff")
	if got := m.next()[1]; len(got) > longestLine+len("STATUS=") ||
		!strings.HasSuffix(got, "ä…") {
		t.Errorf("%d bytes: …%q", len(got), got[len(got)-20:])
	}
}

func TestNoManager(t *testing.T) {
	n := newNotifier(t, Options{Environment: func(string) string { return "" }})
	run(t, n)
	n.SetState(StateRunning, "in the foreground")
	n.Fail(errors.New("x"))
	if pending := n.pendingNow(); pending > 0 {
		t.Errorf("%d messages wait for nobody", pending)
	}
}

// A full socket does not block the notifier. Later all changes of state and the last sentence are
// sent.
func TestFullSocket(t *testing.T) {
	m := newManager(t)
	n := newNotifier(t, Options{Environment: m.environment()})
	run(t, n)
	n.SetState(StateRunning, "start")
	filled := 0
	for ; n.pendingNow() == 0; filled++ {
		n.SetState(StateRunning, fmt.Sprint("sentence ", filled))
	}
	began := time.Now()
	n.SetState(StateReloading, "reload 1")
	for i := range 1000 {
		n.SetState(StateReloading, fmt.Sprint("phase ", i))
	}
	n.SetState(StateRunning, "reload 1 done")
	n.SetState(StateRunning, "last sentence")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("a full socket held the agent up for %v", took)
	}
	var told []string
	for len(told) == 0 || told[len(told)-1] != "STATUS=last sentence" {
		told = append(told, m.next()...)
	}
	text := strings.Join(told, " ")
	reloading, ready := strings.Index(text, "RELOADING=1"), strings.LastIndex(text, "READY=1")
	if reloading < 0 || ready < reloading {
		t.Errorf("the changes of state are not told in order: %s", text)
	}
	if strings.Count(text, "phase") > 1 {
		t.Errorf("sentences that were no longer true were told: %s", text)
	}
	m.quiet()
}
func (n *Notifier) pendingNow() int { n.mu.Lock(); defer n.mu.Unlock(); return len(n.pending) }

// The number of pending messages is limited, and the newest ones are retained.
func TestKeptIsBounded(t *testing.T) {
	m := newManager(t)
	if err := os.Remove(m.path); err != nil {
		t.Fatal(err)
	}
	n := newNotifier(t, Options{Environment: m.environment()})
	for i := range 3 * maxPending {
		n.SetState(StateReloading, fmt.Sprint(i))
		n.SetState(StateRunning, fmt.Sprint(i))
	}
	if kept := n.pendingNow(); kept > maxPending {
		t.Errorf("%d messages wait", kept)
	}
	m.listen() // the manager restarts
	run(t, n)
	n.SetState(StateStopping, "bye")
	var last []string
	for len(last) == 0 || last[0] != "STOPPING=1" {
		last = m.next()
	}
}

func TestAbstractSocket(t *testing.T) {
	name := fmt.Sprintf("@outrider-test-%d", os.Getpid())
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	m := &manager{t: t, path: name, socket: socket}
	newNotifier(t, Options{Environment: m.environment()}).SetState(StateRunning, "x")
	m.next()
}

func TestClose(t *testing.T) {
	m := newManager(t)
	n := NewNotifier(Options{Environment: m.environment(), Logger: slog.New(slog.DiscardHandler)})
	for i := 0; n.pendingNow() == 0; i++ {
		n.SetState(StateRunning, fmt.Sprint(i))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	n.Close(ctx)
	n.SetState(StateRunning, "after the end")
	if pending := n.pendingNow(); pending > 0 {
		t.Errorf("%d messages are pending after the end", pending)
	}
	for {
		lines, ok := m.within(time.Millisecond)
		if !ok {
			break
		}
		if slices.Contains(lines, "STATUS=after the end") {
			t.Error("a message is sent after the end")
		}
	}
}
