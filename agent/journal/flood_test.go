package journal

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// While journald does not read, lines are queued; none is lost or reordered.
func TestBackpressure(t *testing.T) {
	d := newJournald(t)
	log := slog.New(open(t, d, "").Handler())
	const lines = 1000
	for i := range lines {
		log.Info(strconv.Itoa(i))
	}
	for i := range lines {
		if got := d.must().one("MESSAGE"); got != strconv.Itoa(i) {
			t.Fatalf("line %d is %q", i, got)
		}
	}
	log.Info("and directly again")
	if got := d.must().one("MESSAGE"); got != "and directly again" {
		t.Fatal(got)
	}
}

// Lines beyond the queue's size are counted and reported, and warnings can use the reserve.
func TestSuppressed(t *testing.T) {
	d := newJournald(t)
	log := slog.New(open(t, d, "").Handler())
	const lines = 20000
	text := strings.Repeat("x", 200)
	began := time.Now()
	for range lines {
		log.Info(text)
	}
	log.Error("this one matters")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("a journal that takes nothing held the agent up for %v", took)
	}
	told := regexp.MustCompile(`^(\d+) lines were suppressed`)
	came, suppressed, mattered := 0, 0, false
	for came+suppressed < lines {
		e := d.must()
		message := e.one("MESSAGE")
		switch match := told.FindStringSubmatch(message); {
		case match != nil:
			count, err := strconv.Atoi(match[1])
			if err != nil || e.one("PRIORITY") != "4" || e.one("OUTRIDER_SUPPRESSED") != match[1] {
				t.Errorf("%v", e)
			}
			suppressed += count
		case message == text:
			came++
		case message == "this one matters":
			mattered = true
		}
	}
	if !mattered || came+suppressed != lines || suppressed == 0 {
		t.Errorf("%d came, %d were suppressed of %d; the error came: %v", came, suppressed,
			lines, mattered)
	}
	log.Info("on it goes")
	if got := d.must().one("MESSAGE"); got != "on it goes" {
		t.Errorf("%q", got)
	}
}

// The journal reconnects after journald restarts.
func TestRestartedJournald(t *testing.T) {
	d := newJournald(t)
	log := slog.New(open(t, d, "").Handler())
	log.Info("before")
	d.must()
	_ = d.socket.Close()
	if err := os.Remove(d.path); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		log.Info(strconv.Itoa(i))
	}
	d.listen()
	for i := range 10 {
		if got := d.must().one("MESSAGE"); got != strconv.Itoa(i) {
			t.Fatalf("line %d is %q", i, got)
		}
	}
}

// Close sends queued lines while journald reads, and gives up if it does not.
func TestClose(t *testing.T) {
	d := newJournald(t)
	j, err := Open(Options{Socket: d.path, Level: slog.LevelInfo, Program: "x"})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(j.Handler())
	const lines = 500
	for i := range lines {
		log.Info(strconv.Itoa(i))
	}
	read := make(chan string, lines)
	go func() {
		defer close(read)
		for range lines {
			e, ok := d.next(10 * time.Second)
			if !ok {
				return
			}
			read <- e.one("MESSAGE")
		}
	}()
	j.Close(t.Context())
	j.Close(t.Context())
	log.Info("after the end")
	last := ""
	for message := range read {
		last = message
	}
	if last != strconv.Itoa(lines-1) {
		t.Errorf("the last line that came is %q", last)
	}

	stuck, err := Open(Options{Socket: d.path, Level: slog.LevelInfo, Program: "x"})
	if err != nil {
		t.Fatal(err)
	}
	for range lines {
		slog.New(stuck.Handler()).Info("y")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	stuck.Close(ctx)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("closed after %v", took)
	}
}

// 5,000 lines per second arrive completely, and memory grows by at most 5 MB.
func TestFlood(t *testing.T) {
	d := newJournald(t)
	log := slog.New(open(t, d, "").Handler())
	const rate, seconds = 5000, 5
	var came, told atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for came.Load()+told.Load() < rate*seconds {
			e, ok := d.next(10 * time.Second)
			if !ok {
				return
			}
			if count := e.one("OUTRIDER_SUPPRESSED"); count != "" {
				n, _ := strconv.Atoi(count)
				told.Add(int64(n))
			} else {
				came.Add(1)
			}
		}
	}()
	runtime.GC()
	before := resident(t)
	text := strings.Repeat("a line of Envoy ", 8)
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	began := time.Now()
	for sent := 0; sent < rate*seconds; {
		<-ticker.C
		// Do not send more unread lines than the queue holds: if the reader stalls, wait.
		due := min(int(time.Since(began).Seconds()*rate), rate*seconds,
			int(came.Load()+told.Load())+rate/5)
		for ; sent < due; sent++ {
			log.LogAttrs(t.Context(), slog.LevelInfo, text, slog.String("component", "envoy"),
				slog.Int("epoch", 1), slog.String("envoy_component", "router"))
		}
	}
	<-done
	after := resident(t)
	t.Logf("%d lines came, %d were told as suppressed; resident %d kB before, %d kB after",
		came.Load(), told.Load(), before>>10, after>>10)
	if came.Load() != rate*seconds {
		t.Errorf("%d lines came of %d", came.Load(), rate*seconds)
	}
}

// resident returns the resident memory of this process in bytes.
func resident(t *testing.T) int64 {
	t.Helper()
	content, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(content), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

func BenchmarkHandle(b *testing.B) {
	d := newJournald(b)
	log := slog.New(open(b, d, "").Handler())
	go func() {
		buffer := make([]byte, 64<<10)
		for {
			if _, err := d.socket.Read(buffer); err != nil {
				return
			}
		}
	}()
	b.ReportAllocs()
	for b.Loop() {
		log.LogAttrs(b.Context(), slog.LevelInfo, "a line of Envoy", slog.String("component",
			"envoy"), slog.Int("epoch", 1), slog.String("envoy_component", "router"))
	}
}
