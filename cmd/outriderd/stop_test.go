package main_test

import (
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/scripts/load"
	"outrider.org/outrider/scripts/rig"
)

// A drain tells every client to come again on a new connection, up to the moment in which the listeners close: none of them is
// cut, all that come later are refused.
func TestStopUnderLoadCutsNoExchange(t *testing.T) {
	r := rig.New(t, rig.Options{})
	daemon := r.StartReady()
	running := r.StartLoad(0.25)
	rig.Eventually(t, 10*time.Second, "the load runs", func() bool { code, _, err := r.Get("/"); return err == nil && code == 200 })
	running.Mark("stop")
	if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, 20*time.Second, "new connections are refused", func() bool { _, _, err := r.Get("/"); return err != nil })
	report := running.Stop()
	if exit := daemon.Wait(t, 30*time.Second); exit != 0 {
		t.Errorf("exit %d", exit)
	}
	for name, class := range report.Classes {
		t.Logf("%s: %v", name, class.Outcomes)
		if name != "tcp" && class.Outcomes[load.HardReset]+class.Outcomes[load.Timeout] > 0 {
			t.Errorf("the stop cut exchanges of %s: %v", name, class.Outcomes)
		}
	}
	if report.Total < 100 {
		t.Errorf("only %d requests were made", report.Total)
	}
}
