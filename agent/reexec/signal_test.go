package reexec

import (
	"os"
	"os/signal"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// An ignored signal is in the mask SigIgn in /proc/self/status, which the next image inherits.
func TestIgnore_UntilRestored(t *testing.T) {
	received := make(chan os.Signal, 1)
	signal.Notify(received, unix.SIGUSR2)
	defer signal.Stop(received)
	restore := Ignore(unix.SIGUSR2)
	if err := unix.Kill(os.Getpid(), unix.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, ignored, _ := strings.Cut(string(status), "SigIgn:\t")
	if mask := ignored[:16]; mask[13] != '8' { // bit 11 of the mask is SIGUSR2
		t.Errorf("ignored: %s", mask)
	}
	restore()
	if len(received) > 0 {
		t.Error("an ignored signal was handled")
	}
	if err := unix.Kill(os.Getpid(), unix.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	<-received
}
