package systemtest

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// When logrotate rotates the access logs with the packaged configuration, Envoy continues in the
// new file, without a new epoch.
func TestLogrotate(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.RunScript("install -D -m 0644 -t /etc/logrotate.d /opt/packaging/logrotate/outrider")
	h.WriteText("/etc/outrider/conf.d/50-log.toml",
		"[telemetry]\naccess_log_file = \"/var/log/outrider/access.log\"\naccess_log_format = "+
			"\"%REQ(X-MARK)%\\n\"\n")
	h.MustRun(t, "systemctl", "start", "outrider.service")
	live := h.LiveEpoch()
	ask := func(mark string) {
		t.Helper()
		h.MustRun(t, "curl", "-sf", "-m", "5", "-o", "/dev/null", "-H", "Host: web.test", "-H",
			"X-Mark: "+mark, "http://127.0.0.1:80/")
	}
	// holds waits until a file consists of one line, because Envoy writes its access logs to the
	// file only every ten seconds, or on request.
	holds := func(path, mark string) {
		t.Helper()
		h.Eventually(time.Minute, path+" holds "+mark, func() bool {
			out, err := h.Run(t.Context(), "cat", path)
			return err == nil && strings.TrimSpace(out) == mark
		})
	}
	for i := range 3 {
		mark := "request-" + strconv.Itoa(i)
		ask(mark)
		holds("/var/log/outrider/access.log", mark)
		h.MustRun(t, "logrotate", "--force", "--verbose", "/etc/logrotate.d/outrider")
		holds("/var/log/outrider/access.log.1", mark)
		h.Eventually(time.Minute, "Envoy has opened its log again", func() bool {
			_, err := h.Run(t.Context(), "test", "-e", "/var/log/outrider/access.log")
			return err == nil
		})
	}
	if got := h.RunScript(
		"zcat /var/log/outrider/access.log.2.gz /var/log/outrider/access.log.3.gz"); got !=
		"request-1\nrequest-0" {
		t.Errorf("the older logs: %s", got)
	}
	if got := h.RunScript("stat -c '%U %G' /var/log/outrider/access.log*"); strings.Count(got,
		"outrider-envoy outrider-envoy") != 4 {
		t.Errorf("owners: %s", got)
	}
	if now := h.LiveEpoch(); now.PID != live.PID || now.Number != live.Number ||
		h.Status().Ready != true {
		t.Errorf("epoch %d, pid %d became epoch %d, pid %d", live.Number, live.PID, now.Number,
			now.PID)
	}
	// The agent logs this after the response of Envoy, when the new file already exists.
	reopened := func() int {
		return strings.Count(h.Journal("-o", "cat", "-u", "outrider.service"),
			"access logs reopened")
	}
	h.Eventually(time.Minute, "the journal tells three times that logs were reopened",
		func() bool { return reopened() >= 3 })
	if times := reopened(); times != 3 {
		t.Errorf("the journal tells %d times that logs were reopened", times)
	}
}
