package capture

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/rpc"
	"outrider.org/outrider/scripts/parts"
)

// If outrider-capture does not read its socket, no call of a client blocks beyond its deadline.
func TestClient_StoppedHelperBlocksNoCall(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	resume := parts.PauseProcess(t, r.helper.Process.Pid)
	defer resume()
	large := captureAll
	large.Instance = strings.Repeat("x", 64<<10)
	for calls := 0; ; calls++ {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		began := time.Now()
		_, err := r.client.Apply(ctx, large)
		cancel()
		if took := time.Since(began); took >= rpc.PeerTimeout {
			t.Errorf("a call with a deadline of 10 ms took %v", took)
		}
		if errors.Is(err, errClosed) {
			t.Logf("the socket was full after %d calls", calls)
			return
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	}
}

func TestClient_NamesHelperOfEarlierVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "capture.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	go func() {
		helper, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(helper, `{"status":{"state":"off"}}`+"\n")
		_, _ = io.Copy(io.Discard, helper)
	}()
	client, err := Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const want = "outrider-capture has an older version than the agent; " + reload
	if _, err := client.Status(t.Context()); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// outrider-capture re-executes itself for a reload. It survives a second reload signal, which may
// arrive before the new process image has installed its signal handler.
func TestHelper_SurvivesReloadsInQuickSuccession(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	for began := time.Now(); time.Since(began) < time.Second; {
		if err := r.helper.Process.Signal(unix.SIGUSR2); err != nil {
			t.Fatal(err)
		}
	}
	parts.Eventually(t, time.Minute, "the helper serves", func() bool {
		client, err := Dial(t.Context(), r.socket())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		status, err := client.Status(t.Context())
		return err == nil && status.PID == r.helper.Process.Pid
	})
}
