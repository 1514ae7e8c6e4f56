package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/rpc"
	"outrider.org/outrider/scripts/parts"
)

// greet connects as an agent that does not read the keeper's answers.
func (l *lab) greet() *rpc.Conn {
	l.Helper()
	connection, err := rpc.Dial(l.context(), filepath.Join(l.folder, socketName))
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { _ = connection.Close() })
	var theirs hello
	ours := hello{Protocol: protocolVersion, Role: roleAgent}
	if err := errors.Join(connection.Send(l.context(), ours),
		connection.Receive(time.Time{}, &theirs)); err != nil {
		l.Fatal(err)
	}
	return connection
}

func TestMeasure_BoundsAbandonedCalls(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.startFake(0, false, "wait")
	pid := l.client.Info().PID
	l.client.Close()
	before := residentBytes(pid)
	connection := l.greet()
	// Send requests without reading answers, until the keeper stops reading or the time is over.
	ctx, cancel := context.WithTimeout(l.context(), 3*time.Second)
	defer cancel()
	for number := range uint64(3200) {
		if connection.Send(ctx, request{Number: number + 1, Operation: operationMeasure}) != nil {
			break
		}
	}
	grown := residentBytes(pid)
	const most = 16 << 20 // the race detector multiplies the keeper's memory
	if before == 0 || grown == 0 || grown > before+most {
		t.Errorf("the keeper grew from %d kB to %d kB", before>>10, grown>>10)
	}
	_ = connection.Close()
	l.dial()
}

// The keeper disconnects an agent that does not read its log lines, so that another agent can
// connect.
func TestServer_DisconnectsAgentThatReadsNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.startFake(0, false, "flood")
	l.client.Close()
	_ = l.greet()
	l.eventually("another agent is served", func() bool {
		client, err := Dial(l.context(), filepath.Join(l.folder, socketName))
		if err != nil && !errors.Is(err, ErrBusy) {
			t.Fatal(err)
		}
		l.client = client
		return err == nil
	})
	l.Cleanup(l.client.Close)
	if err := l.client.Signal(l.context(), p.ID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	l.exitOf(p.ID)
}

func TestDial_IgnoresRunningCallsOfPreviousAgent(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	port := parts.FreePort(t)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	p := l.startFake(0, false, "sockets=1", "listen="+address, "handle=listening", "wait")
	l.says(p.ID, "listening")
	parts.PauseProcess(t, p.PID)
	waiting, err := net.Dial("tcp",
		address) // never accepted: StopEnvoysAccepting waits for acceptWait
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = waiting.Close() }()
	l.client.Close()
	connection := l.greet()
	if err := connection.Send(l.context(),
		request{Number: 1, Operation: operationStopAccepting}); err != nil {
		t.Fatal(err)
	}
	l.eventually("the doors close", func() bool { return isRefused(address) })
	_ = connection.Close()
	client, err := Dial(l.context(), filepath.Join(l.folder, socketName))
	if err != nil {
		t.Fatal(err)
	}
	l.client = client
	l.Cleanup(client.Close)
}

// isRefused reports whether a connection is refused.
func isRefused(address string) bool {
	connection, err := net.DialTimeout("tcp", address, time.Second)
	if err == nil {
		_ = connection.Close()
	}
	return errors.Is(err, unix.ECONNREFUSED)
}

func TestMeasurement_IsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var used atomic.Int32
		failure := errors.New("no answer")
		m := measurement{take: func() ([]Process, error) {
			time.Sleep(time.Second)
			if number := used.Add(1); number != 4 {
				return []Process{{PID: int(number)}}, nil
			}
			return nil, failure
		}}
		check := func(what string, limit, maxAge time.Duration, want int, failed error) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			processes, err := m.get(ctx, maxAge)
			got := 0
			if len(processes) > 0 {
				got = processes[0].PID
			}
			if got != want || !errors.Is(err, failed) {
				t.Errorf("%s: measurement %d, %v; want %d, %v", what, got, err, want, failed)
			}
		}
		for range 100 {
			go check("its caller leaves", 10*time.Millisecond, time.Minute, 0,
				context.DeadlineExceeded)
		}
		synctest.Wait()
		check("others wait for it", time.Minute, time.Minute, 1, nil)
		time.Sleep(time.Second)
		check("it is new enough", time.Minute, 2*time.Second, 1, nil)
		check("it is too old", time.Minute, time.Second/2, 2, nil)
		time.Sleep(time.Second)
		check("its only caller leaves", time.Millisecond, 0, 0, context.DeadlineExceeded)
		time.Sleep(2 * time.Second)
		check("it fails", time.Minute, time.Millisecond, 0, failure)
		check("a failure is not kept", time.Minute, time.Minute, 5, nil)
	})
}
