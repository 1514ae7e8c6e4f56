package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// journald is a fake journald.
type journald struct {
	t      testing.TB
	path   string
	socket *net.UnixConn
	buffer []byte
}

func newJournald(t testing.TB) *journald {
	t.Helper()
	d := &journald{t: t, path: filepath.Join(parts.ShortDir(t), "socket"),
		buffer: make([]byte, 1<<20)}
	d.listen()
	return d
}

func (d *journald) listen() {
	d.t.Helper()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: d.path, Net: "unixgram"})
	if err != nil {
		d.t.Fatal(err)
	}
	d.socket = socket
	d.t.Cleanup(func() { _ = socket.Close() })
}

// entry is a decoded entry: the values of each field.
type entry map[string][]string

func (e entry) one(name string) string {
	if len(e[name]) == 0 {
		return ""
	}
	return strings.Join(e[name], "|")
}

// next receives an entry. It returns false if none arrives within the limit.
func (d *journald) next(limit time.Duration) (entry, bool) {
	d.t.Helper()
	_ = d.socket.SetReadDeadline(time.Now().Add(limit))
	rights := make([]byte, 256)
	n, rightsLength, _, _, err := d.socket.ReadMsgUnix(d.buffer, rights)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, false
	}
	if err != nil {
		d.t.Fatal(err)
	}
	data := d.buffer[:n]
	if n == 0 {
		data = d.received(rights[:rightsLength])
	}
	decoded, err := decode(data)
	if err != nil {
		d.t.Fatalf("%v in %q", err, data)
	}
	return decoded, true
}

func (d *journald) must() entry {
	d.t.Helper()
	e, ok := d.next(10 * time.Second)
	if !ok {
		d.t.Fatal("no line came")
	}
	return e
}

// received reads a passed memfd.
func (d *journald) received(rights []byte) []byte {
	d.t.Helper()
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		d.t.Fatalf("%v %v", messages, err)
	}
	descriptors, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(descriptors) != 1 {
		d.t.Fatalf("%v %v", descriptors, err)
	}
	file := os.NewFile(uintptr(descriptors[0]), "received")
	defer file.Close()
	seals, err := unix.FcntlInt(file.Fd(), unix.F_GET_SEALS, 0)
	const all = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL
	if err != nil || seals != all {
		d.t.Errorf("seals %#x, %v: journald takes only what is sealed", seals, err)
	}
	info, err := file.Stat()
	if err != nil {
		d.t.Fatal(err)
	}
	data := make([]byte, info.Size())
	if _, err := file.ReadAt(data, 0); err != nil {
		d.t.Fatal(err)
	}
	return data
}

// decode parses the native protocol.
func decode(data []byte) (entry, error) {
	decoded := entry{}
	for len(data) > 0 {
		first, rest, ok := bytes.Cut(data, []byte("\n"))
		if !ok {
			return nil, errors.New("a line does not end")
		}
		if name, value, plain := bytes.Cut(first, []byte("=")); plain {
			decoded[string(name)] = append(decoded[string(name)], string(value))
			data = rest
			continue
		}
		if len(rest) < 8 {
			return nil, errors.New("no length")
		}
		length := binary.LittleEndian.Uint64(rest)
		rest = rest[8:]
		if uint64(len(rest)) < length+1 || rest[length] != '\n' {
			return nil, errors.New("wrong length")
		}
		decoded[string(first)] = append(decoded[string(first)], string(rest[:length]))
		data = rest[length+1:]
	}
	return decoded, nil
}

func open(t testing.TB, d *journald, instance string) *Journal {
	t.Helper()
	j, err := Open(Options{Socket: d.path, Level: slog.LevelDebug - 8, Program: "outriderd",
		Instance: instance})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close(t.Context()) })
	return j
}

func TestFields(t *testing.T) {
	own := map[string]string{"SYSLOG_IDENTIFIER": "outriderd", "OUTRIDER_COMPONENT": "agent",
		"OUTRIDER_INSTANCE": "web"}
	for _, c := range []struct {
		name string
		log  func(*slog.Logger)
		want map[string]string // fields expected besides those of own; "" = the field is absent
	}{
		{"plain", func(l *slog.Logger) { l.Info("hello") },
			map[string]string{"MESSAGE": "hello", "PRIORITY": "6", "OUTRIDER_EPOCH": "",
				"MESSAGE_ID": "", "CODE_FILE": "journal/journal_test.go"}},
		{"error", func(l *slog.Logger) {
			l.Error("the stop", "error", fmt.Errorf("wait: %w", os.ErrClosed), "by", "SIGTERM",
				"took", 3*time.Second)
		}, map[string]string{"MESSAGE": "the stop: wait: file already closed by=SIGTERM took=3s",
			"PRIORITY": "3"}},
		{"no error", func(l *slog.Logger) { l.Debug("gone", "error", error(nil), "pid", 7) },
			map[string]string{"MESSAGE": "gone pid=7", "PRIORITY": "7"}},
		{"epoch", func(l *slog.Logger) { l.Warn("reopened", "epoch", 3) }, map[string]string{
			"MESSAGE": "reopened epoch=3", "OUTRIDER_EPOCH": "3", "PRIORITY": "4"}},
		{"epoch is named", func(l *slog.Logger) {
			l.Info("epoch 3 is live", "epoch", 3, "event", condition.KindEpochLive)
		}, map[string]string{"MESSAGE": "epoch 3 is live", "OUTRIDER_EPOCH": "3",
			"MESSAGE_ID": MessageIDEpochLive}},
		{"epochs in words", func(l *slog.Logger) { l.Info("reload", "epoch", "epoch 0 → 1") },
			map[string]string{"MESSAGE": `reload epoch="epoch 0 → 1"`, "OUTRIDER_EPOCH": ""}},
		{"a stop drains", func(l *slog.Logger) {
			l.Info("stopping: epoch 3 drains", "epoch", 3, "event", condition.KindStopping)
		}, map[string]string{"MESSAGE": "stopping: epoch 3 drains", "OUTRIDER_EPOCH": "3",
			"MESSAGE_ID": MessageIDDraining}},
		{"an event without an ID",
			func(l *slog.Logger) { l.Info("x", "event", condition.KindUndrained) },
			map[string]string{"MESSAGE": "x", "MESSAGE_ID": ""}},
		{"resources", func(l *slog.Logger) {
			l.Error("Envoy refused resources", "resources", "a, b", "file",
				"/etc/outrider/mesh.d/a.yaml", "line", 7, "component", "xds")
		}, map[string]string{"MESSAGE": `Envoy refused resources resources="a, b" file=/etc/outrider/mesh.d/a.yaml line=7`,
			"OUTRIDER_RESOURCE": "a|b", "CONFIG_LINE": "7",
			"CONFIG_FILE": "/etc/outrider/mesh.d/a.yaml", "OUTRIDER_COMPONENT": "xds"}},
		{"a place that the message names", func(l *slog.Logger) {
			l.Error("a.yaml:7: wrong", "config_file", "a.yaml", "config_line", 7)
		}, map[string]string{"MESSAGE": "a.yaml:7: wrong", "CONFIG_FILE": "a.yaml",
			"CONFIG_LINE": "7"}},
		{"of Envoy", func(l *slog.Logger) {
			l.LogAttrs(t.Context(), slog.LevelError+4, "[C1] closing\nreally",
				slog.String("component", "envoy"), slog.Int("epoch", 2),
				slog.Int("pid", 77), slog.String("envoy_component", "conn_handler"))
		}, map[string]string{"MESSAGE": "[C1] closing\nreally", "PRIORITY": "2",
			"SYSLOG_IDENTIFIER": "envoy", "SYSLOG_PID": "77", "OUTRIDER_COMPONENT": "envoy",
			"ENVOY_COMPONENT": "conn_handler", "OUTRIDER_EPOCH": "2", "CODE_FILE": ""}},
		{"with and groups", func(l *slog.Logger) {
			l.With("component", "sds", "a", 1).WithGroup("g").With("b", "x y").Info("m",
				slog.Group("h", "c", ""), slog.Group("", "epoch", 1))
		}, map[string]string{"MESSAGE": `m a=1 g.b="x y" g.h.c="" g.epoch=1`,
			"OUTRIDER_COMPONENT": "sds", "OUTRIDER_EPOCH": ""}},
		{"trace", func(l *slog.Logger) { l.Log(t.Context(), slog.LevelDebug-4, "t") },
			map[string]string{"PRIORITY": "7"}},
		{"notice", func(l *slog.Logger) { l.Log(t.Context(), slog.LevelInfo+2, "n") },
			map[string]string{"PRIORITY": "5"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newJournald(t)
			j := open(t, d, "web")
			c.log(slog.New(j.Handler()))
			got := d.must()
			for _, all := range []map[string]string{own, c.want} {
				for name, want := range all {
					if overridden, ok := c.want[name]; ok {
						want = overridden
					}
					if diff := cmp.Diff(want, got.one(name)); diff != "" {
						t.Errorf("%s (-want +got):\n%s", name, diff)
					}
				}
			}
		})
	}
}

func TestSetEpoch(t *testing.T) {
	d := newJournald(t)
	j := open(t, d, "")
	log := slog.New(j.Handler())
	j.SetEpoch(4)
	log.Info("a")
	log.Info("b", "epoch", 3)
	j.SetEpoch(-1)
	log.Info("c")
	for _, want := range []string{"4", "3", ""} {
		e := d.must()
		if e.one(fieldEpoch) != want {
			t.Errorf("%s: epoch %q, want %q", e.one("MESSAGE"), e.one(fieldEpoch), want)
		}
		if values, ok := e[fieldInstance]; !ok || values[0] != "" {
			t.Errorf("instance %q", values)
		}
	}
}

func TestLevels(t *testing.T) {
	d := newJournald(t)
	j, err := Open(Options{Socket: d.path, Level: slog.LevelInfo, Program: "x"})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close(t.Context())
	slog.New(j.Handler()).Debug("ours")
	slog.New(j.HandlerAt(slog.LevelDebug)).Debug("Envoy's")
	if got := d.must().one("MESSAGE"); got != "Envoy's" {
		t.Errorf("%q", got)
	}
}

// Entries too long for a datagram are sent in a sealed memfd, and messages are truncated.
func TestLongLine(t *testing.T) {
	d := newJournald(t)
	log := slog.New(open(t, d, "").Handler())
	long := strings.Repeat("0123456789\n", 30000)
	log.Info(long)
	if got := d.must().one("MESSAGE"); got != long {
		t.Errorf("%d bytes came of %d", len(got), len(long))
	}
	log.Info(strings.Repeat("ä", longestMessage))
	if got := d.must().one("MESSAGE"); len(got) > longestMessage+50 ||
		!strings.HasSuffix(got, fmt.Sprintf("ä… (%d bytes more)", longestMessage)) {
		t.Errorf("%d bytes: …%s", len(got), got[len(got)-40:])
	}
}

func TestNoJournal(t *testing.T) {
	if _, err := Open(Options{Socket: filepath.Join(t.TempDir(), "none"),
		Level: slog.LevelInfo}); err == nil || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestConnected(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var status unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &status); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{fmt.Sprintf("%d:%d", status.Dev, status.Ino): true,
		fmt.Sprintf("%d:%d", status.Dev, status.Ino+1): false, "": false, "x:y": false, "1:y": false} {
		if got := isJournalStream(file, func(string) string { return text }); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestMessageIDs(t *testing.T) {
	kinds := []string{condition.KindEpochStarted, condition.KindEpochLive,
		condition.KindEpochExited, condition.KindReloadRefused,
		condition.KindDraining, condition.KindSecretRotated, condition.KindRestartsExhausted}
	var ids []string
	for _, kind := range kinds {
		id := messageID(kind)
		if len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" || slices.Contains(ids, id) {
			t.Errorf("%s: %q", kind, id)
		}
		ids = append(ids, id)
	}
	if id := messageID("reload-started"); id != "" {
		t.Errorf("reload-started: %q", id)
	}
}

func FuzzEncode(f *testing.F) {
	f.Add("MESSAGE", "a\nb", "k", "v w")
	f.Add("X", "", "key", "\"=\xff")
	f.Fuzz(func(t *testing.T, name, value, key, pair string) {
		if name == "" || strings.ContainsAny(name, "=\n") {
			return // invalid names cannot occur: names are constants of this package
		}
		encoded := appendField(appendField(nil, name, value), "TAIL",
			string(appendPair(nil, key, pair)))
		decoded, err := decode(encoded)
		if err != nil {
			t.Fatalf("%v: %q", err, encoded)
		}
		if got := decoded[name]; len(got) == 0 || got[0] != value {
			t.Fatalf("%q came back as %q", value, got)
		}
	})
}
