package envoy

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func at(t *testing.T, stamp string) time.Time {
	t.Helper()
	parsed, err := time.ParseInLocation(time.DateTime+".000", stamp, time.Local)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestParseLogLine(t *testing.T) {
	tests := map[string]struct {
		line string
		want logLine
		ok   bool
	}{
		"plain": {"[Envoy (Epoch 12)] [2026-11-21 15:41:49.384][18873][warning][main] [source/server/server.cc:1059] There is no limit",
			logLine{Time: at(t, "2026-11-21 15:41:49.384"), Epoch: 12, Thread: 18873,
				Level: "warning", Component: "main",
				Message: "[source/server/server.cc:1059] There is no limit"}, true},
		"empty message": {"[Envoy (Epoch 0)] [2026-11-21 15:41:49.384][1][critical][envoy_bug] ",
			logLine{Time: at(t, "2026-11-21 15:41:49.384"), Thread: 1, Level: "critical",
				Component: "envoy_bug"}, true},
		"access log": {`[2026-11-21T15:41:49.384Z] "GET / HTTP/1.1" 200`, logLine{}, false},
		"before it has read its format": {"[2026-11-21 15:41:49.384][18873][warning][main] text",
			logLine{Time: at(t, "2026-11-21 15:41:49.384"), Epoch: -1, Thread: 18873,
				Level: "warning", Component: "main", Message: "text"}, true},
		"other format": {"2026-11-21 15:41:49.384 warning main text", logLine{}, false},
		"cut":          {"[Envoy (Epoch 0)] [2026-11-21 15:41:49.384][1][warn", logLine{}, false},
		"no time":      {"[Envoy (Epoch 0)] [now][1][warning][main] x", logLine{}, false},
		"no epoch": {"[Envoy (Epoch -1)] [2026-11-21 15:41:49.384][1][warning][main] x",
			logLine{}, false},
		"level unknown": {"[Envoy (Epoch 0)] [2026-11-21 15:41:49.384][1][][main] x",
			logLine{}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := parseLogLine(test.line)
			if diff := cmp.Diff(test.want, got); diff != "" || ok != test.ok {
				t.Errorf("ok %v, %s", ok, diff)
			}
		})
	}
}

const header = "[Envoy (Epoch 2)] [2026-11-21 15:41:49.384][7][error][config] "

func TestLinesBelongToTheMessageBefore(t *testing.T) {
	var parser logParser
	first := logLine{Time: at(t, "2026-11-21 15:41:49.384"), Epoch: 2, Thread: 7, Level: "error",
		Component: "config"}
	message := func(text string, continued bool) logLine {
		line := first
		line.Message, line.Continued = text, continued
		return line
	}
	if diff := cmp.Diff([]logLine{{Epoch: -1, Message: "error while loading\nshared libraries"}},
		parser.Parse([]string{"", "error while loading", "shared libraries"})); diff != "" {
		t.Errorf("before any message: %s", diff)
	}
	got := parser.Parse([]string{header + "one\r\n", header + "two", "  of two", "", "  and three"})
	if diff := cmp.Diff([]logLine{message("one", false),
		message("two\n  of two\n\n  and three", false)}, got); diff != "" {
		t.Error(diff)
	}
	got = parser.Parse([]string{"of the batch before", header})
	if diff := cmp.Diff([]logLine{message("of the batch before", true), message("", false)},
		got); diff != "" {
		t.Error(diff)
	}
	if got := parser.Parse(nil); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

func TestMessagesAreBounded(t *testing.T) {
	var parser logParser
	long := strings.Repeat("ä", MaxMessageBytes)
	got := parser.Parse([]string{header + long, long})
	var text strings.Builder
	for i, line := range got {
		if len(line.Message) > MaxMessageBytes || !utf8.ValidString(line.Message) ||
			line.Continued != (i > 0) || line.Level != "error" {
			t.Errorf("message %d: %d bytes, %+v", i, len(line.Message), line.Continued)
		}
		text.WriteString(line.Message)
	}
	if text.String() != long+long {
		t.Errorf("%d bytes of %d are left", text.Len(), 2*len(long))
	}
}

// The parser reads the lines of a real Envoy that logs in logFormat.
func TestLogOfARealEnvoy(t *testing.T) {
	began := time.Now().Add(-time.Second)
	e := start(t, CommandLine{RestartEpoch: 4, OutriderEpoch: 4, LogLevel: "debug"})
	if _, err := e.Post(t.Context(), "/quitquitquit"); err != nil {
		t.Fatal(err)
	}
	<-e.exited
	var parser logParser
	components := map[string]bool{}
	messages := parser.Parse(lines(e.log.String()))
	for _, line := range messages {
		if line.Epoch != 4 || line.Thread == 0 || line.Time.Before(began) ||
			line.Time.After(time.Now()) {
			t.Fatalf("%+v", line)
		}
		components[line.Component] = true
	}
	if len(messages) < 50 || !components["main"] || !components["config"] {
		t.Errorf("%d messages of %v", len(messages), components)
	}
}

func FuzzLogLine(f *testing.F) {
	f.Add(header+"message", "more")
	f.Add("[Envoy (Epoch 0)] [2026-11-21 15:41:49.384][1][warn", header)
	f.Add("[Envoy (Epoch 99999999999)] [2026-11-21 15:41:49.384][1][info][x] y", "\xff\xfe")
	f.Add(strings.Repeat("é", MaxMessageBytes), "")
	f.Fuzz(func(t *testing.T, a, b string) {
		var parser logParser
		total := 0
		for _, line := range parser.Parse([]string{a, b, a}) {
			if len(line.Message) > MaxMessageBytes {
				t.Fatalf("a message of %d bytes", len(line.Message))
			}
			total += len(line.Message)
		}
		if total > 2*len(a)+len(b)+3 {
			t.Fatalf("%d bytes of messages from %q and %q", total, a, b)
		}
		_ = ExplainExit(1, "", false, []string{a, b})
	})
}
