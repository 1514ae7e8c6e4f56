package status

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

// largeBootstrap returns a bootstrap whose dump has several megabytes.
func largeBootstrap(clusters, kilobytes int) string {
	var text strings.Builder
	text.WriteString(`, "static_resources": {"clusters": [`)
	for i := range clusters {
		if i > 0 {
			text.WriteString(",")
		}
		fmt.Fprintf(&text,
			`{"name": "c%d", "connect_timeout": "1s", "metadata": {"filter_metadata": {"x": {"text": %q}}}}`,
			i, strings.Repeat(fmt.Sprintf("%04d", i), kilobytes<<8))
	}
	text.WriteString("]}")
	return text.String()
}

// allocated returns the bytes that Envoy has allocated.
func allocated(t *testing.T, admin http.RoundTripper) int64 {
	t.Helper()
	request, _ := http.NewRequest(http.MethodGet, "http://admin/memory", nil)
	response, err := admin.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var memory struct {
		Allocated int64 `json:",string"`
	}
	if err := json.NewDecoder(response.Body).Decode(&memory); err != nil || memory.Allocated == 0 {
		t.Fatalf("%+v, %v", memory, err)
	}
	return memory.Allocated
}

// slowReader requests a path and reads nothing until the test ends.
func slowReader(t *testing.T, uid int, address, path string) (c net.Conn) {
	t.Helper()
	// A small buffer, so that the kernel cannot hold the whole answer.
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096)
		})
	}}
	var err error
	parts.RunAs(t, uid, func() { c, err = dialer.Dial("tcp", address) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_, _ = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
	return c
}

func TestDumps_SlowReadersDoNotGrowEnvoy(t *testing.T) {
	socket, _ := startEnvoy(t, largeBootstrap(300, 10))
	admin := unixAdmin(t, socket)
	envoy := &proxy{}
	envoy.set(admin, 0, "")
	view := NewAdminView(AdminViewOptions{Epochs: &epochs{},
		Config: AdminViewConfig{Port: parts.FreePort(t)}, Proxy: envoy,
		TrustedUIDs: []uint32{0}, Conditions: condition.NewRegistry(), Logger: discard()})
	view.dumps.slow = 200 * time.Millisecond // slow readers soon release their slots to others
	runPart(t, view.Run)
	<-view.Ready()
	url := "http://" + view.ListenAddress()

	code, dump, header := ask(t, "GET", url+"/config_dump")
	if code != 200 || !json.Valid([]byte(dump)) ||
		header.Get("Content-Length") != fmt.Sprint(len(dump)) {
		t.Fatalf("%d, %d bytes, %v", code, len(dump), header)
	}
	before := allocated(t, admin)
	most := before
	for i := range 250 {
		slowReader(t, 20000+i%8, view.ListenAddress(), "/config_dump")
		if i%10 == 0 {
			most = max(most, allocated(t, admin))
		}
	}
	eventually(t, "slow readers give way", func() bool {
		most = max(most, allocated(t, admin))
		return view.dumps.others.Stats().Evicted >= 2
	})
	t.Logf("a dump has %d KB, Envoy has grown by at most %d KB, of %d", len(dump)>>10,
		(most-before)>>10, before>>10)
	if grown := most - before; grown > 4*int64(len(dump)) {
		t.Errorf("Envoy has grown by %d bytes: more than four dumps of %d", grown, len(dump))
	}
	began := time.Now()
	if code, got, _ := ask(t, "GET", url+"/config_dump"); code != 200 || !json.Valid([]byte(got)) ||
		len(got) < len(dump)*9/10 {
		t.Errorf("root: %d, %d of %d bytes", code, len(got), len(dump))
	}
	t.Logf("root read it in %s", time.Since(began).Round(time.Millisecond))
}

// A user gets one large answer at a time, with admin_access "read" and "full". Further requests
// wait, and are refused after the timeout.
func TestDumps_AtATime(t *testing.T) {
	for _, full := range []bool{false, true} {
		t.Run(fmt.Sprintf("full %v", full), func(t *testing.T) {
			var now, most atomic.Int32
			ended := make(chan struct{})
			t.Cleanup(func() { close(ended) })
			envoy := &proxy{}
			envoy.set(roundTripper(func(*http.Request) (*http.Response, error) {
				defer now.Add(-1)
				for n := now.Add(1); ; {
					if old := most.Load(); n <= old || most.CompareAndSwap(old, n) {
						break
					}
				}
				<-ended
				return nil, io.ErrUnexpectedEOF
			}), 0, "")
			view := NewAdminView(AdminViewOptions{Epochs: &epochs{},
				Config: AdminViewConfig{Port: parts.FreePort(t), Full: full},
				Proxy:  envoy, TrustedUIDs: []uint32{0},
				Conditions: condition.NewRegistry(), Logger: discard()})
			view.dumps.waitFor = 500 * time.Millisecond
			runPart(t, view.Run)
			<-view.Ready()
			for _, path := range large {
				for uid := range 4 {
					slowReader(t, uid*20000, view.ListenAddress(), path)
				}
			}
			eventually(t, "root and two others have an answer made",
				func() bool { return most.Load() >= 3 })
			last := slowReader(t, 20000, view.ListenAddress(), "/clusters")
			_ = last.SetReadDeadline(time.Now().Add(15 * time.Second))
			text := make([]byte, 512)
			if n, err := last.Read(text); err != nil || !strings.Contains(string(text[:n]),
				"try again later") {
				t.Errorf("%s, %v", text[:n], err)
			}
			if got := most.Load(); got != 3 {
				t.Errorf("%d at a time", got)
			}
		})
	}
}
