package systemtest

import (
	"fmt"
	"strings"
	"testing"

	"outrider.org/outrider/agent/api"
)

// Envoy's user can fill only the shared memory of its own unit, which is limited and separate from
// the host's. A hot restart then still works.
func TestSharedMemory_OfEnvoyIsBounded(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.MustRun(t, "systemctl", "start", "outrider.service")
	inside := fmt.Sprintf("nsenter -t %d -m setpriv --reuid=outrider-envoy "+
		"--regid=outrider-envoy --clear-groups ", h.MainPID("outrider-envoy"))
	said := h.RunScript(inside +
		"dd if=/dev/zero of=/dev/shm/fill bs=1M count=64 2>&1 || true")
	if !strings.Contains(said, "No space left") {
		t.Errorf("the shared memory has no limit: %s", said)
	}
	if left := h.RunScript("ls /dev/shm"); strings.Contains(left, "fill") {
		t.Errorf("it is the host's: %s", left)
	}
	before := h.LiveEpoch()
	h.WriteText("/etc/outrider/conf.d/70-drain.toml", "[envoy]\ndrain_duration = \"44s\"\n")
	h.MustRun(t, "outrider", "reload")
	if now := h.LiveEpoch(); now.Number != before.Number+1 || now.Mode != "hot-restart" ||
		now.State != api.EpochLive {
		t.Errorf("%+v after %+v", now, before)
	}
	h.MustServe()
}
