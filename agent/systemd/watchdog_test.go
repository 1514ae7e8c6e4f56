package systemd

import (
	"context"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// An extension without WATCHDOG=1 would also extend the watchdog.
func TestExtensionLeavesTheWatchdog(t *testing.T) {
	m := newManager(t)
	n := newNotifier(t, Options{Environment: m.environment("WATCHDOG_USEC=2000000")})
	for _, state := range []State{StateStarting, StateRunning, StateReloading, StateDraining,
		StateReloading, StateRunning,
		StateStopping} {
		n.SetState(state, "x")
		message := m.next()
		if fed, extends := slices.Contains(message, "WATCHDOG=1"),
			slices.Contains(message, extension); fed != extends || extends != state.lasts() {
			t.Errorf("%s: %q", state, message)
		}
	}
}

// The watchdog is fed only while the control loop responds.
func TestWatchdog(t *testing.T) {
	m := newManager(t)
	var stuck atomic.Bool
	held := make(chan struct{}, 10000) // one element per ping that hangs
	n := newNotifier(t, Options{
		Environment: m.environment("WATCHDOG_USEC=100000", "WATCHDOG_PID="+strconv.Itoa(os.Getpid())),
		Ping: func(ctx context.Context) error {
			if stuck.Load() {
				held <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		},
	})
	n.SetState(StateRunning, "up")
	m.next()
	run(t, n)
	for range 5 {
		began := time.Now()
		if diff := cmp.Diff([]string{"WATCHDOG=1"}, m.next()); diff != "" {
			t.Fatal(diff)
		}
		t.Log(time.Since(began))
	}
	stuck.Store(true)
	<-held // the ping blocks: earlier messages have been sent
	for {
		if _, ok := m.within(200 * time.Millisecond); !ok {
			break
		}
	}
	<-held // the next ping starts after the first one has timed out
	m.quiet()
	stuck.Store(false)
	if diff := cmp.Diff([]string{"WATCHDOG=1"}, m.next()); diff != "" {
		t.Fatal(diff)
	}
}

// The timeout of a long phase is extended repeatedly, in the same message as WATCHDOG=1.
func TestExtension(t *testing.T) {
	m := newManager(t)
	n := newNotifier(t, Options{Environment: m.environment("WATCHDOG_USEC=40000")})
	n.SetState(StateStarting, "up")
	m.next()
	run(t, n)
	for range 3 {
		if diff := cmp.Diff([]string{"WATCHDOG=1", "EXTEND_TIMEOUT_USEC=30000000"}, m.next()); diff != "" {
			t.Fatal(diff)
		}
	}
	n.SetState(StateRunning, "up")
	for message := m.next(); message[0] != "READY=1"; message = m.next() {
	}
	if diff := cmp.Diff([]string{"WATCHDOG=1"}, m.next()); diff != "" {
		t.Fatal(diff)
	}
}

func TestWatchdogInterval(t *testing.T) {
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
	}{
		{"", "", 0}, {"0", "", 0}, {"x", "", 0}, {"-5", "", 0}, {"99999999999999999999", "", 0},
		{"9223372036854775807", "", 0}, {"2000000", "", 2 * time.Second},
		{"2000000", strconv.Itoa(os.Getpid()), 2 * time.Second}, {"2000000", "1", 0},
	} {
		got := watchdogInterval(func(name string) string {
			return map[string]string{"WATCHDOG_USEC": c.usec, "WATCHDOG_PID": c.pid}[name]
		})
		if got != c.want {
			t.Errorf("%q %q: %v, want %v", c.usec, c.pid, got, c.want)
		}
	}
}
