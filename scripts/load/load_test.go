package load

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"outrider.org/outrider/scripts/backend"
	"outrider.org/outrider/scripts/parts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func startBackend(t *testing.T) *backend.Backend {
	t.Helper()
	server, err := backend.Start(backend.Config{Name: "b", HTTP: "127.0.0.1:0", TCP: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server
}

func TestStandardLoad(t *testing.T) {
	server := startBackend(t)
	var lines bytes.Buffer
	const rate = 0.3
	run, err := Start(t.Context(), Config{
		HTTPAddress: server.HTTPAddress(), HTTP2Address: server.HTTPAddress(), TCPAddress: server.TCPAddress(),
		Rate: rate, Output: &lines,
	})
	if err != nil {
		t.Fatal(err)
	}
	run.await(t, 1000)
	run.Mark("end")
	report := run.Stop()
	t.Logf("\n%s", report)
	if report.Lost != 0 || report.Retriable != 0 {
		t.Errorf("%d lost, %d cut before an answer, by a server that answers all", report.Lost,
			report.Retriable)
	}
	for class, perSecond := range map[string]float64{ClassKeepAlive: 800, ClassNewConnections: 200,
		ClassHTTP2: 800,
		ClassTCP:   500} {
		// On a busy machine the load runs longer than until the mark, so the expected number is a
		// range.
		least, most := perSecond*rate*report.Marks[0].At.Seconds(),
			perSecond*rate*report.Duration.Seconds()
		if got := float64(report.Classes[class].Requests +
			report.Classes[class].Unsent); got < 0.95*least || got > 1.05*most {
			t.Errorf("%s: %v requests were due in %v, not %v to %v", class, got, report.Marks[0].At,
				least, most)
		}
	}
	decoder := json.NewDecoder(&lines)
	var printed []SecondResult
	for decoder.More() {
		var second SecondResult
		if err := decoder.Decode(&second); err != nil {
			t.Fatal(err)
		}
		printed = append(printed, second)
	}
	if diff := cmp.Diff(report.Seconds, printed); diff != "" {
		t.Errorf("lines printed (-report +lines):\n%s", diff)
	}
	total := 0
	for _, second := range report.Seconds {
		total += second.Requests
	}
	if total != report.Total {
		t.Errorf("%d requests by second, %d in all", total, report.Total)
	}
	if again := run.Stop(); again.Total != report.Total {
		t.Errorf("stopped twice: %d requests, then %d", report.Total, again.Total)
	}
}

// A pause of the server affects every request that was due during the pause.
func TestLoad_NoCoordinatedOmission(t *testing.T) {
	const pause = 500 * time.Millisecond
	var gate sync.RWMutex
	address := serve(t, func(http.ResponseWriter, *http.Request) {
		gate.RLock()
		defer gate.RUnlock()
	})
	run, err := Start(t.Context(), Config{HTTPAddress: address, Rate: 0.2})
	if err != nil {
		t.Fatal(err)
	}
	run.await(t, 40)
	gate.Lock()
	time.Sleep(pause) //house:sleep the pause of the server
	gate.Unlock()
	run.await(t, 200)
	report := run.Stop()
	slow := 0
	for i, n := range run.recorder.classes[ClassKeepAlive].latency.buckets {
		if upper(i) > 100*time.Millisecond {
			slow += int(n)
		}
	}
	// 160 requests/s of ka were due at least 100 ms before the end of the pause.
	want := int(160 * (pause - 100*time.Millisecond).Seconds())
	if slow < want*7/10 {
		t.Errorf("%d slow answers, not about %d", slow, want)
	}
	if longest := report.Classes[ClassKeepAlive].Max; longest < pause-50*time.Millisecond {
		t.Errorf("the longest took %v, with a pause of %v", longest, pause)
	}
}

// serve serves HTTP/1.1 and cleartext HTTP/2 and returns the address.
func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: handler, Protocols: protocols}
	listener := listen(t)
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close(); <-served })
	return listener.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

func TestProcess(t *testing.T) {
	const least = 500
	var asked atomic.Int64
	address := serve(t, func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	var lines bytes.Buffer
	process, err := StartProcess(t.Context(), Config{HTTPAddress: address,
		HTTP2Address: address, Output: &lines})
	if err != nil {
		t.Fatal(err)
	}
	parts.Eventually(t, time.Minute, "requests", func() bool { return asked.Load() > 0 })
	if err := process.Mark("switch of epochs"); err != nil {
		t.Error(err)
	}
	parts.Eventually(t, time.Minute, "more requests", func() bool { return asked.Load() >= least })
	report, err := process.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if report.Lost != 0 || report.Total < least {
		t.Errorf("%s", report)
	}
	if len(report.Marks) != 1 || report.Marks[0].Label != "switch of epochs" {
		t.Errorf("marks: %+v", report.Marks)
	}
	if got := strings.Count(lines.String(), "\n"); got != len(report.Seconds) {
		t.Errorf("%d lines for %d seconds", got, len(report.Seconds))
	}
}

func TestStart_InvalidConfig(t *testing.T) {
	for _, config := range []Config{{}, {HTTPAddress: "127.0.0.1:1", Rate: -1}} {
		if _, err := Start(t.Context(), config); err == nil {
			t.Errorf("%+v was accepted", config)
		}
	}
}
