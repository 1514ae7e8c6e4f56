package keeper

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func hotRestartMessage(message []byte) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(len(message))), message...)
}

func TestRequestOf(t *testing.T) {
	for name, test := range map[string]struct {
		datagram []byte
		want     uint64
	}{
		"pass a socket": {hotRestartMessage([]byte{0x0a, 0x05, 0x0a, 0x03, 0x0a, 0x01, 'x'}), passListenSocket},
		"shut admin":    {hotRestartMessage([]byte{0x0a, 0x02, 0x12, 0x00}), shutdownAdmin},
		"drain":         {hotRestartMessage([]byte{0x0a, 0x02, 0x22, 0x00}), 4},
		"terminate":     {hotRestartMessage([]byte{0x0a, 0x02, 0x2a, 0x00}), terminateParent},
		"a reply":       {hotRestartMessage([]byte{0x12, 0x02, 0x12, 0x00}), 0},
		"cut":           {hotRestartMessage([]byte{0x0a, 0x02, 0x2a})[:10], 0},
		"nothing":       {nil, 0},
	} {
		if got := requestOf(test.datagram); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
	want := hotRestartMessage([]byte{0x12, 0x06, 0x12, 0x04, 0x08, 0x05, 0x10, 0x01})
	if got := shutdownAdminReply(time.Unix(5, 0)); !bytes.Equal(got, want) {
		t.Errorf("reply: % x, want % x", got, want)
	}
}

func FuzzRequestOf(f *testing.F) {
	f.Add(hotRestartMessage([]byte{0x0a, 0x02, 0x2a, 0x00}))
	f.Add(hotRestartMessage([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}))
	f.Fuzz(func(_ *testing.T, datagram []byte) { requestOf(datagram) })
}

func splitAll(pieces ...string) []string {
	var lines []string
	var s lineSplitter
	for _, piece := range pieces {
		s.write([]byte(piece), func(line string) { lines = append(lines, line) })
	}
	if len(s.partial) > 0 {
		s.end(func(line string) { lines = append(lines, line) })
	}
	return lines
}

func TestLines(t *testing.T) {
	long := strings.Repeat("x", MaxLine)
	for name, test := range map[string]struct{ pieces, want []string }{
		"whole":    {[]string{"a\nb\n"}, []string{"a", "b"}},
		"pieces":   {[]string{"a", "b\nc", "", "d"}, []string{"ab", "cd"}},
		"returns":  {[]string{"a\r\n", "b\r", "\n"}, []string{"a", "b"}},
		"empty":    {[]string{"\n\n"}, []string{"", ""}},
		"just fit": {[]string{long + "\n"}, []string{long}},
		"too long": {[]string{long, "yy", "y\nz\n"}, []string{long + " [3 bytes cut]", "z"}},
		"no text":  {[]string{"\xff\xfe\n"}, []string{"\uFFFD"}},
	} {
		if difference := cmp.Diff(test.want, splitAll(test.pieces...)); difference != "" {
			t.Errorf("%s: %s", name, difference)
		}
	}
}

// FuzzLines checks that lineSplitter emits the same lines however a stream is divided into writes.
func FuzzLines(f *testing.F) {
	f.Add("one\ntwo\r\nthree", 4)
	f.Add(strings.Repeat("x", MaxLine+3)+"\n", MaxLine+1)
	f.Fuzz(func(t *testing.T, stream string, at int) {
		if at < 0 || at > len(stream) {
			return
		}
		whole, cut := splitAll(stream), splitAll(stream[:at], stream[at:])
		if !slices.Equal(whole, cut) {
			t.Errorf("%q cut at %d: %q, not %q", stream, at, cut, whole)
		}
	})
}

func TestBacklog_IsBounded(t *testing.T) {
	b := newBacklog()
	from, other := origin{"a", 1}, origin{"b", 2}
	b.add(other, "early")
	for range MaxQueuedLines {
		b.add(from, "line")
	}
	b.add(from, "last")
	var lines int
	var dropped uint64
	saved := b.snapshot()
	for len(b.waiting) > 0 {
		<-b.waiting
		for _, log := range b.take() {
			lines += len(log.Lines)
			dropped += log.Dropped
			if log.ID == "b" && (len(log.Lines) != 0 || log.Dropped != 1) {
				t.Errorf("of b: %+v", log)
			}
		}
	}
	if lines != MaxQueuedLines || dropped != 2 {
		t.Errorf("%d lines, %d dropped", lines, dropped)
	}
	again := newBacklog()
	again.restore(saved)
	if again.bytes != len("line")*MaxQueuedLines || again.dropped[from] != 1 ||
		again.dropped[other] != 1 {
		t.Errorf("restored: %d bytes, dropped %v", again.bytes, again.dropped)
	}
	big := strings.Repeat("x", MaxLine)
	for range 2 * MaxQueuedBytes / MaxLine {
		b.add(from, big)
	}
	if b.bytes > MaxQueuedBytes {
		t.Errorf("%d bytes are kept", b.bytes)
	}
	batch := again.take()
	again.putBack(batch)
	if difference := cmp.Diff(batch, again.take()); difference != "" {
		t.Errorf("given back: %s", difference)
	}
}
