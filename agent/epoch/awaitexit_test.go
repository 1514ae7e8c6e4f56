package epoch

import (
	"context"
	"os/exec"
	"testing"
	"time"
)

func TestAwaitExit(t *testing.T) {
	sleeper := exec.Command("sleep", "1000")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	pid := sleeper.Process.Pid
	ended := make(chan bool)
	go func() { ended <- awaitExit(t.Context(), pid) }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if awaitExit(ctx, pid) {
		t.Error("a process that lives has ended")
	}
	if err := sleeper.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = sleeper.Wait()
	if !<-ended || !awaitExit(t.Context(), pid) {
		t.Error("the end of a process is not noticed")
	}
}
