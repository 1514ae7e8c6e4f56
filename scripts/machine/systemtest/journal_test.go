package systemtest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/journal"
)

// floodEnvironment is an environment variable that makes the test program run flood, which logs
// floodRate lines per second to the journal for floodTime.
const (
	floodEnvironment = "OUTRIDER_TEST_FLOOD"
	floodRate        = 5000
	floodTime        = 20 * time.Second
	floodLines       = floodRate * int(floodTime/time.Second)
	mostGrowth       = 5_000_000 // bytes
)

// flood logs as an agent does whose Envoy writes many lines, and prints by how many bytes its
// memory grew.
func flood() int {
	j, err := journal.Open(journal.Options{Level: slog.LevelInfo, Program: "outriderd"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	log, text := slog.New(j.Handler()), strings.Repeat("a line of Envoy ", 8)
	say := func(n int) {
		log.LogAttrs(context.Background(), slog.LevelInfo, text+strconv.Itoa(n),
			slog.String("component", "envoy"), slog.Int("epoch", 1), slog.String("envoy_component",
				"router"))
	}
	before := int64(0)
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	began := time.Now()
	for sent := 0; sent < floodLines; {
		<-ticker.C
		for due := min(int(time.Since(began).Seconds()*floodRate), floodLines); sent < due; sent++ {
			say(sent)
		}
		if before == 0 && sent > 2*floodRate {
			before = held()
		}
	}
	after := held()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	j.Close(ctx)
	fmt.Printf("grew by %d bytes\n", max(1, after-before))
	return 0
}

// held returns how many bytes of memory the Go runtime of this program holds, without the shadow
// memory of the race detector. TestEnvoyLogFlood measures the resident memory of the real agent.
func held() int64 {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return int64(memory.Sys - memory.HeapReleased)
}

// A program logs 5,000 lines per second while journald is restarted. Each line is in the real
// journal or in the reported number of suppressed lines, and the program's memory hardly grows.
func TestFloodOfLines(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := NewHost(t, filepath.Dir(program)+":/opt/test")
	h.WriteText("/etc/systemd/journald.conf.d/test.conf",
		"[Journal]\nSystemMaxUse=1G\nRuntimeMaxUse=1G\n")
	h.MustRun(t, "systemctl", "restart", "systemd-journald.service")
	h.MustRun(t, "systemd-run", "--quiet", "--unit=flood", "--remain-after-exit", "-E",
		floodEnvironment+"=1", "-p", "LogRateLimitIntervalSec=30s",
		"-p", "LogRateLimitBurst=200000", "/opt/test/"+filepath.Base(program))
	h.Eventually(time.Minute, "the flood has begun", func() bool {
		return strings.Count(h.MustRun(t, "journalctl", "-u", "flood", "-o", "cat", "-n", "100"),
			"\n") > 50
	})
	h.MustRun(t, "systemctl", "restart", "systemd-journald.service")
	h.Eventually(2*time.Minute, "the flood has ended",
		func() bool { return h.Property("flood", "SubState") == "exited" })
	h.MustRun(t, "journalctl", "--sync")
	h.RunScript("journalctl --no-pager -q -o cat _SYSTEMD_UNIT=flood.service >/run/flood.txt")
	count := func(pattern string) (n int) {
		for text := range strings.FieldsSeq(
			h.RunScript("grep -E '" + pattern + "' /run/flood.txt | grep -oE '[0-9]+' || true")) {
			number, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			n += number
		}
		return n
	}
	came, err := strconv.Atoi(h.RunScript("grep -c '^a line of Envoy' /run/flood.txt"))
	if err != nil {
		t.Fatal(err)
	}
	suppressed, growth := count("lines were suppressed"), count("^grew by")
	t.Logf("%d lines came, %d were told as suppressed; the sender grew by %d bytes", came,
		suppressed, growth)
	if came+suppressed != floodLines {
		t.Errorf("of %d lines %d are accounted for; journald says: %s", floodLines, came+suppressed,
			h.RunScript("journalctl --no-pager -q -o cat -u systemd-journald | grep Suppressed || "+
				"true"))
	}
	if growth == 0 || growth > mostGrowth {
		t.Errorf("the sender grew by %d bytes, at most %d", growth, mostGrowth)
	}
}

// Log entries of the agent and its Envoy have the documented fields, and journalctl -x explains
// entries with a message ID.
func TestJournalFields(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	// At this level Envoy logs some lines, which the test needs.
	h.WriteText("/etc/outrider/conf.d/40-log.toml", "[envoy]\nlog_level = \"info\"\n")
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.MustRun(t, "systemctl", "reload", "outrider.service")
	h.WriteText("/etc/outrider/conf.d/50-broken.toml", "nonsense = 1\n")
	if out, err := h.Run(t.Context(), "systemctl", "reload", "outrider.service"); err == nil {
		t.Errorf("a broken configuration is taken: %s", out)
	}
	h.MustRun(t, "rm", "/etc/outrider/conf.d/50-broken.toml")
	h.MustRun(t, "outrider", "drain")
	h.Eventually(time.Minute, "the first epoch has ended", func() bool {
		return strings.Contains(h.Journal("-o", "cat", "MESSAGE_ID="+journal.MessageIDEpochExited),
			"epoch=0")
	})
	h.MustRun(t, "systemctl", "stop", "outrider.service")
	component := map[string]string{"refused": "reload"}
	for name, id := range map[string]string{"started": journal.MessageIDEpochStarted,
		"live": journal.MessageIDEpochLive, "exited": journal.MessageIDEpochExited,
		"refused": journal.MessageIDReloadRefused, "draining": journal.MessageIDDraining} {
		entries := h.journal("MESSAGE_ID=" + id)
		if len(entries) == 0 {
			t.Errorf("nothing has the message ID of %s", name)
			continue
		}
		first := entries[0]
		if first["OUTRIDER_COMPONENT"] != cmp.Or(component[name], "epoch") ||
			first["SYSLOG_IDENTIFIER"] != "outriderd" ||
			first["_SYSTEMD_UNIT"] != "outrider.service" {
			t.Errorf("%s: %v", name, first)
		}
		if _, ok := first["OUTRIDER_INSTANCE"]; !ok {
			t.Errorf("%s: no OUTRIDER_INSTANCE", name)
		}
		if (name == "started" || name == "live") && first["OUTRIDER_EPOCH"] != "0" {
			t.Errorf("%s: OUTRIDER_EPOCH=%s", name, first["OUTRIDER_EPOCH"])
		}
		if out := h.Journal("-x", "MESSAGE_ID="+id); !strings.Contains(out,
			"Defined-By: Outrider") {
			t.Errorf("journalctl -x does not explain %s:\n%s", name, out)
		}
	}
	if drains := h.Journal("-o", "cat",
		"MESSAGE_ID="+journal.MessageIDDraining); !strings.Contains(drains,
		"stopping: the live epoch drains epoch=1") {
		t.Errorf("the stop does not carry the message ID of draining: %s", drains)
	}
	lines := h.journal("OUTRIDER_COMPONENT=envoy", "OUTRIDER_EPOCH=1")
	if len(lines) == 0 {
		t.Fatal("no line of epoch 1's Envoy is in the journal")
	}
	priorities := map[string]bool{}
	for _, line := range lines {
		priorities[line["PRIORITY"]] = true
		if line["SYSLOG_IDENTIFIER"] != "envoy" || line["SYSLOG_PID"] == "" ||
			line["ENVOY_COMPONENT"] == "" && !strings.HasPrefix(line["MESSAGE"], " ") {
			t.Errorf("%v", line)
		}
	}
	t.Logf("priorities of Envoy's lines: %v", priorities)
	if slice := h.Journal("-o", "cat", "-u", "outrider.slice"); !strings.Contains(slice,
		"epoch is live epoch=1") {
		t.Error("journalctl -u outrider.slice does not show the agent")
	}
}

// journal returns the fields of each journal entry that matches.
func (h *Host) journal(matches ...string) []map[string]string {
	h.t.Helper()
	out := h.Journal(append([]string{"-o", "json"}, matches...)...)
	var entries []map[string]string
	for decoder := json.NewDecoder(bytes.NewReader([]byte(out))); decoder.More(); {
		var raw map[string]any
		if err := decoder.Decode(&raw); err != nil {
			h.t.Fatal(err)
		}
		entry := map[string]string{}
		for name, value := range raw {
			if text, ok := value.(string); ok {
				entry[name] = text
			}
		}
		entries = append(entries, entry)
	}
	return entries
}
