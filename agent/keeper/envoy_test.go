package keeper

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

func TestStart_HotRestart(t *testing.T) {
	t.Parallel()
	l, port := newLab(t), parts.FreePort(t)
	o := envoyOptions{port: port}
	first := l.startEnvoy(0, o).live()
	second := l.startEnvoy(1, o).live()
	if exit := l.exitOf(first.ID); exit.Exit.Code != 0 {
		t.Errorf("epoch 0 ended with %+v", exit.Exit)
	}
	if p := l.process(second.ID); p.Exit != nil {
		t.Errorf("epoch 1 ended with %+v", p.Exit)
	}
	if body, err := get(port); err != nil || body != "hello from "+second.ID {
		t.Errorf("after the hot restart: %q, %v", body, err)
	}
	if _, err := os.Lstat(first.admin); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the admin socket of the epoch that ended is left: %v", err)
	}
	second.live() // the admin socket of the living epoch still exists
}

func TestStandIn_ChildSurvivesItsParent(t *testing.T) {
	t.Parallel()
	for _, signal := range []unix.Signal{unix.SIGKILL, unix.SIGTERM} {
		t.Run(unix.SignalName(signal), func(t *testing.T) {
			t.Parallel()
			l, port := newLab(t), parts.FreePort(t)
			o := envoyOptions{port: port, drain: 1, parentShutdown: 4}
			first := l.startEnvoy(0, o).live()
			second := l.startEnvoy(1, o).live()
			if err := l.client.Signal(l.context(), first.ID, signal); err != nil {
				t.Fatal(err)
			}
			l.exitOf(first.ID)
			died := time.Now()
			if !l.process(second.ID).ParentedByKeeper {
				t.Error("epoch 1 has no stand-in")
			}
			// If the keeper did not answer for the dead parent, the child would send its next
			// message at parent-shutdown-time, and abort 10 s later.
			l.eventually("16 s later", func() bool { return time.Since(died) > 16*time.Second })
			if p := l.process(second.ID); p.Exit != nil {
				t.Fatalf("epoch 1 ended with %+v\n%s", *p.Exit, strings.Join(p.LastLines, "\n"))
			}
			third := l.startEnvoy(2, o).live()
			l.exitOf(second.ID)
			if body, err := get(port); err != nil || body != "hello from "+third.ID {
				t.Errorf("after the next epoch: %q, %v", body, err)
			}
		})
	}
}

// If parent and child of a hot restart receive SIGTERM at the same time, as when the keeper ends,
// both exit without an abort.
func TestShutdown_HotRestartPairExitsCleanly(t *testing.T) {
	t.Parallel()
	l, port := newLab(t), parts.FreePort(t)
	o := envoyOptions{port: port, drain: 60, parentShutdown: 90}
	first := l.startEnvoy(0, o).live()
	second := l.startEnvoy(1, o).live()
	for _, e := range []envoy{first, second} {
		if err := l.client.Signal(l.context(), e.ID, unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range []envoy{first, second} {
		if exit := l.exitOf(e.ID).Exit; exit.Code != 0 {
			t.Errorf("%s ended with %+v", e.ID, *exit)
		}
	}
}

func TestClearInitializing(t *testing.T) {
	t.Parallel()
	l, port := newLab(t), parts.FreePort(t)
	o := envoyOptions{port: port}
	first := l.startEnvoy(0, o).live()
	broken := o
	broken.broken = true
	if p := l.exitOf(l.startEnvoy(1, broken).ID); p.Exit.Code != 1 {
		t.Fatalf("a broken epoch ended with %+v", p.Exit)
	}
	stuck := l.exitOf(l.startEnvoy(1, o).ID)
	if !strings.Contains(strings.Join(stuck.LastLines, "\n"),
		"previous envoy process is still initializing") {
		t.Fatalf("the flag is not stuck: %+v\n%s", stuck.Exit, strings.Join(stuck.LastLines, "\n"))
	}
	if body, err := get(port); err != nil || body != "hello from "+first.ID {
		t.Errorf("epoch 0 after two failures: %q, %v", body, err)
	}
	if cleared, err := l.client.ClearInitializingFlag(l.context(), 0); err != nil || !cleared {
		t.Fatalf("clear: %v, %v", cleared, err)
	}
	l.startEnvoy(1, o).live()
	if cleared, err := l.client.ClearInitializingFlag(l.context(), 0); err != nil || cleared {
		t.Fatalf("clear when nothing is to be cleared: %v, %v", cleared, err)
	}
}

func TestKeeper_KilledLeavesNoOrphan(t *testing.T) {
	t.Parallel()
	l, port := newLab(t), parts.FreePort(t)
	hot := l.startEnvoy(0, envoyOptions{port: port}).live()
	beside := l.startEnvoy(7, envoyOptions{port: port, sideBySide: true}).live()
	if err := unix.Kill(l.client.Info().PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	l.eventually("both Envoys end with the keeper", func() bool {
		return gone(hot.PID) && gone(beside.PID)
	})
	<-l.client.Done()
	// The next keeper in the folder uses the same base ID and removes stale files.
	before := l.client.Info().BaseID
	client, err := StartKeeper(l.context(), LaunchOptions{Folder: l.folder, Binary: selfPath(t),
		Env: keeperEnvironmentOf()})
	if err != nil {
		t.Fatal(err)
	}
	l.client.Close()
	l.client = client
	if now := client.Info().BaseID; now != before {
		t.Errorf("base id %d, then %d", before, now)
	}
	l.startEnvoy(0, envoyOptions{port: port}).live()
}

func TestLogPipe_IsReadWithoutAgent(t *testing.T) {
	t.Parallel()
	l, port := newLab(t), parts.FreePort(t)
	e := l.startEnvoy(0, envoyOptions{port: port, level: "trace"}).live()
	l.client.Close() // from now on, no agent is connected to the keeper
	asked := 0
	for started := time.Now(); time.Since(started) < 4*time.Second; asked++ {
		if body, err := get(port); err != nil || body != "hello from "+e.ID {
			t.Fatalf("request %d: %q, %v", asked, body, err)
		}
	}
	l.dial()
	lines, dropped := 0, uint64(0)
	l.eventually("the kept lines and the number of those dropped", func() bool {
		for {
			select {
			case event := <-l.client.Events():
				if event.Log != nil {
					lines += len(event.Log.Lines)
					dropped += event.Log.Dropped
				}
				continue
			default:
				return lines > 0 && dropped > 0
			}
		}
	})
	t.Logf("%d requests at trace level, %d lines dropped", asked, dropped)
}

// A child becomes live although its parent is killed during the child's start, at whatever moment.
// The child may then be waiting for a reply of the parent.
func TestStandIn_ParentDiesWhileChildStarts(t *testing.T) {
	t.Parallel()
	for round := range 7 {
		delay := time.Duration(round) * 8 * time.Millisecond
		t.Run(delay.String(), func(t *testing.T) {
			l, port := newLab(t), parts.FreePort(t)
			first := l.startEnvoy(0, envoyOptions{port: port}).live()
			second := l.startEnvoy(1, envoyOptions{port: port})
			time.Sleep(delay) //house:sleep varies the moment at which the parent dies
			if err := l.client.Signal(l.context(), first.ID, unix.SIGKILL); err != nil &&
				!HasCode(err, CodeExited) {
				t.Fatal(err)
			}
			killed := time.Now()
			l.eventually("the child serves", func() bool {
				body, err := get(port)
				return err == nil && body == "hello from "+second.ID
			})
			second.live()
			t.Logf("served after %v, stand-in %v", time.Since(killed),
				l.process(second.ID).ParentedByKeeper)
		})
	}
}

// If a parent hangs (SIGSTOP) and is killed while its child waits for a reply, the keeper replies
// for the parent.
func TestStandIn_RepliesForHungParentThatDies(t *testing.T) {
	t.Parallel()
	l, port := newLab(t), parts.FreePort(t)
	first := l.startEnvoy(0, envoyOptions{port: port}).live()
	parts.PauseProcess(t, first.PID)
	second := l.startEnvoy(1, envoyOptions{port: port})
	l.eventually("the child waits for an answer", func() bool {
		call, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", second.PID))
		return err == nil && strings.HasPrefix(string(call), fmt.Sprintf("%d ", unix.SYS_RECVMSG))
	})
	if err := l.client.Signal(l.context(), first.ID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	second.live()
	t.Logf("live %v after the death of its parent", time.Since(killed))
	if body, err := get(port); err != nil || body != "hello from "+second.ID {
		t.Errorf("%q, %v", body, err)
	}
	l.startEnvoy(2, envoyOptions{port: port}).live()
}

// A keeper that is stopped while a command runs kills and reaps the command, and exits. The moment
// varies, because the kernel needs some time to end a large program.
func TestShutdown_WhileCommandRuns(t *testing.T) {
	envoy := parts.EnvoyPath(t)
	for delay := 10 * time.Millisecond; delay <= 80*time.Millisecond; delay += 10 * time.Millisecond {
		l := newLab(t)
		pid, ran := l.client.Info().PID, make(chan struct{})
		go func() {
			defer close(ran)
			_, _ = l.client.Run(t.Context(), envoy, []string{"--version"})
		}()
		time.Sleep(delay) //house:sleep varies the moment of the signal
		if err := unix.Kill(pid, unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		l.eventually("the keeper ends", func() bool { return unix.Kill(pid, 0) != nil })
		<-ran
	}
}
