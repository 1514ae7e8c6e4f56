package agent

import (
	"testing"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
)

// Without a live epoch, failedWrites returns an error, so that a condition remains. Without a
// configured log file it returns nil.
func TestFailedWrites_UnknownWithoutAnEpoch(t *testing.T) {
	for file, unknown := range map[string]bool{"/var/log/access.log": true, "/dev/stdout": false} {
		c := &config.Config{}
		c.Telemetry.AccessLogFile = file
		if count, err := failedWrites(t.Context(), c, &epoch.Supervisor{}); count != nil || (err != nil) != unknown {
			t.Errorf("%s: %+v, %v", file, count, err)
		}
	}
}
