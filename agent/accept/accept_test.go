package accept

import (
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

func TestNext_PausesWhileThereIsNoDescriptor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, calls, failures := time.Now(), 0, 0
		got, err := NextConn(func() (string, error) {
			if calls++; time.Since(began) < 10*time.Second {
				return "", &net.OpError{Op: "accept", Err: unix.EMFILE}
			}
			return "connection", nil
		}, func(err error) {
			if failures++; !errors.Is(err, unix.EMFILE) {
				t.Error(err)
			}
		})
		if got != "connection" || err != nil || calls != 101 || failures != 100 {
			t.Errorf("%q, %v after %d calls, %d failures", got, err, calls, failures)
		}
	})
}

func TestListener_EndsWhenItIsClosed(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := inner.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := (Listener{Listener: inner}).Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
