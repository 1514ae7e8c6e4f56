package parts

import (
	"os/exec"
	"testing"
	"time"
)

func TestStop_ReturnsOnceTheProcessIsStopped(t *testing.T) {
	p := StartProcess(t, exec.Command("sh", "-c", "while :; do echo x; done"))
	Eventually(t, time.Minute, "it writes", func() bool { return len(p.String()) > 0 })
	for range 20 {
		resume := PauseProcess(t, p.command.Process.Pid)
		if !isStopped(p.command.Process.Pid) {
			t.Error("it runs")
		}
		resume()
		Eventually(t, time.Minute, "it runs again",
			func() bool { return !isStopped(p.command.Process.Pid) })
	}
}
