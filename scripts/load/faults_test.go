package load

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"outrider.org/outrider/scripts/parts"
)

// faulty is a server that applies a fault to some exchanges and counts the expected outcomes.
type faulty struct {
	listener net.Listener
	serve    func(*faulty, net.Conn)
	fault    string
	every    int

	serving sync.WaitGroup
	mu      sync.Mutex
	seen    int
	want    map[Outcome]int
	conns   []net.Conn
}

func startFaulty(t *testing.T, fault string, every int, serve func(*faulty, net.Conn)) *faulty {
	t.Helper()
	f := &faulty{listener: listen(t), serve: serve, fault: fault, every: every,
		want: map[Outcome]int{}}
	f.serving.Go(func() {
		for {
			conn, err := f.listener.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.conns = append(f.conns, conn)
			f.mu.Unlock()
			f.serving.Go(func() { f.serve(f, conn); _ = conn.Close() })
		}
	})
	t.Cleanup(func() {
		_ = f.listener.Close()
		f.mu.Lock()
		for _, conn := range f.conns {
			_ = conn.Close()
		}
		f.mu.Unlock()
		f.serving.Wait()
	})
	return f
}

// next reports whether the fault applies to this exchange.
func (f *faulty) next() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen++
	return f.seen%f.every == 0
}

func (f *faulty) expect(outcome Outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.want[outcome]++
}

func reset(conn net.Conn) {
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

// serveHTTP1 answers requests; each fault ends the connection.
func serveHTTP1(f *faulty, conn net.Conn) {
	reader := bufio.NewReader(conn)
	for first := true; ; first = false {
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		if !f.next() {
			f.expect(OutcomeOK)
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			if request.Close {
				return
			}
			continue
		}
		early := OutcomeRetriable
		if first {
			early = OutcomeHardReset
		}
		switch f.fault {
		case "close":
			f.expect(early)
		case "reset":
			f.expect(early)
			reset(conn)
		case "half an answer":
			f.expect(OutcomeHardReset)
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
		case "half a head":
			f.expect(OutcomeHardReset)
			_, _ = io.WriteString(conn, "HTTP/1.1 200 O")
		case "no HTTP":
			f.expect(OutcomeMalformed)
			_, _ = io.WriteString(conn, "SSH-2.0-OpenSSH_9.2\r\n\r\n")
		case "503":
			f.expect(OutcomeStatus)
			_, _ = io.WriteString(conn,
				"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: "+
					"0\r\n\r\n")
		case "silence":
			f.expect(OutcomeTimeout)
			_, _ = io.Copy(io.Discard, reader) // read until the client gives up
		case "connection: close":
			f.expect(OutcomeOK)
			_, _ = io.WriteString(conn,
				"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		}
		return
	}
}

func TestHTTP1_CountsFaultsExactly(t *testing.T) {
	for _, fault := range []string{"close", "reset", "half an answer", "half a head", "no HTTP",
		"503", "silence", "connection: close"} {
		t.Run(fault, func(t *testing.T) {
			server := startFaulty(t, fault, 20, serveHTTP1)
			report := runFaults(t, Config{HTTPAddress: server.listener.Addr().String(), Rate: 0.2,
				Timeout: patience(fault)})
			compare(t, server, report, ClassKeepAlive, ClassNewConnections)
		})
	}
}

// patience returns the timeout of an operation, long enough for a busy machine.
func patience(fault string) time.Duration {
	if fault == "silence" {
		return 6 * time.Second
	}
	return 20 * time.Second
}

// enough is the number of requests in which each fault occurs several times.
const enough = 100

// runFaults runs a load until each fault has occurred.
func runFaults(t *testing.T, config Config) Report {
	t.Helper()
	run, err := Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	run.await(t, enough)
	return run.Stop()
}

// await waits until a number of requests, including one of each class, have ended.
func (r *RunningLoad) await(t *testing.T, number int) {
	t.Helper()
	parts.Eventually(t, time.Minute, fmt.Sprintf("%d requests", number), func() bool {
		r.recorder.mu.Lock()
		defer r.recorder.mu.Unlock()
		all, each := 0, true
		for _, class := range r.recorder.classes {
			n := class.total()
			all, each = all+n, each && n > 0
		}
		return each && all >= number
	})
}

func compare(t *testing.T, server *faulty, report Report, classes ...string) {
	t.Helper()
	got := map[Outcome]int{}
	for _, class := range classes {
		for outcome, n := range report.Classes[class].Outcomes {
			got[outcome] += n
		}
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	if diff := cmp.Diff(server.want, got); diff != "" {
		t.Errorf("outcomes (-server +counted):\n%s", diff)
	}
	lost, total := 0, 0
	for outcome, n := range got {
		total += n
		if outcome != OutcomeOK && outcome != OutcomeRetriable {
			lost += n
		}
	}
	if len(got) < 2 && server.fault != "connection: close" {
		t.Errorf("the fault did not strike: %v", got)
	}
	if report.Classes[ClassTCP].Requests == 0 && (report.Lost != lost || report.Total != total ||
		report.Retriable != got[OutcomeRetriable]) {
		t.Errorf("report: %d lost, %d reuse, %d in all; not %d, %d, %d", report.Lost,
			report.Retriable,
			report.Total, lost, got[OutcomeRetriable], total)
	}
}

func TestNobodyListens(t *testing.T) {
	// The port is not in the range of ephemeral ports, where a connection could connect to itself.
	address := fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))
	report := runFaults(t, Config{HTTPAddress: address, HTTP2Address: address, TCPAddress: address})
	if report.Total == 0 || report.Lost != report.Total {
		t.Errorf("%d of %d lost", report.Lost, report.Total)
	}
	for name, class := range report.Classes {
		if class.Outcomes[OutcomeDialRefused] != class.Requests || class.Requests == 0 {
			t.Errorf("%s: %+v", name, class)
		}
	}
}

// serveHTTP2 answers streams in sequence.
func serveHTTP2(f *faulty, conn net.Conn) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(conn, preface); err != nil {
		return
	}
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := errors.Join(framer.WriteSettings(), framer.WritePing(false, [8]byte{1})); err != nil {
		return
	}
	away := false
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		headers, ok := frame.(*http2.MetaHeadersFrame)
		if !ok {
			continue
		}
		id := headers.StreamID
		strikes := f.next()
		switch {
		case away:
			f.expect(OutcomeRetriable) // the client sent the request before it read the GOAWAY
		case !strikes:
			f.expect(OutcomeOK)
			answerHTTP2(framer, id, 200)
		case f.fault == "GOAWAY":
			f.expect(OutcomeRetriable)
			away = true
			_ = framer.WriteGoAway(id-2, http2.ErrCodeNo, nil)
		case f.fault == "graceful GOAWAY":
			f.expect(OutcomeOK)
			_ = framer.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil)
			answerHTTP2(framer, id, 200)
		case f.fault == "REFUSED_STREAM":
			f.expect(OutcomeRetriable)
			_ = framer.WriteRSTStream(id, http2.ErrCodeRefusedStream)
		case f.fault == "RST_STREAM":
			f.expect(OutcomeHardReset)
			_ = framer.WriteRSTStream(id, http2.ErrCodeInternal)
		case f.fault == "503":
			f.expect(OutcomeStatus)
			answerHTTP2(framer, id, 503)
		case f.fault == "silence":
			f.expect(OutcomeTimeout)
		}
	}
}

func answerHTTP2(framer *http2.Framer, id uint32, status int) {
	var block writer
	encoder := hpack.NewEncoder(&block)
	encoder.SetMaxDynamicTableSize(0)
	_ = encoder.WriteField(hpack.HeaderField{Name: ":status", Value: fmt.Sprint(status)})
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block,
		EndHeaders: true})
	_ = framer.WriteData(id, true, []byte("ok"))
}

type writer []byte

func (w *writer) Write(p []byte) (int, error) { *w = append(*w, p...); return len(p), nil }

func TestHTTP2_CountsFaultsExactly(t *testing.T) {
	for _, fault := range []string{"GOAWAY", "graceful GOAWAY", "REFUSED_STREAM", "RST_STREAM",
		"503", "silence"} {
		t.Run(fault, func(t *testing.T) {
			server := startFaulty(t, fault, 20, serveHTTP2)
			report := runFaults(t, Config{HTTP2Address: server.listener.Addr().String(), Rate: 0.2,
				Timeout: patience(fault)})
			if fault == "graceful GOAWAY" {
				server.fault = "connection: close" // every request is answered, as with this fault
			}
			compare(t, server, report, ClassHTTP2)
		})
	}
}

// An HTTP/2 connection that ends without GOAWAY loses its requests.
func TestHTTP2_EndWithoutGoAway(t *testing.T) {
	server := startFaulty(t, "end", 1, func(f *faulty, conn net.Conn) {
		framer := http2.NewFramer(conn, conn)
		_, _ = io.ReadFull(conn, make([]byte, len(http2.ClientPreface)))
		for {
			frame, err := framer.ReadFrame()
			if err != nil || frame.Header().Type == http2.FrameHeaders {
				return // the caller closes the connection
			}
		}
	})
	report := runFaults(t, Config{HTTP2Address: server.listener.Addr().String(),
		Rate: 0.2})
	if class := report.Classes[ClassHTTP2]; class.Requests == 0 ||
		class.Outcomes[OutcomeHardReset] != class.Requests {
		t.Errorf("%+v", class)
	}
}

func TestTCP_CountsCutsExactly(t *testing.T) {
	server := startFaulty(t, "cut", 25, func(f *faulty, conn net.Conn) {
		lines := bufio.NewReader(conn)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			if f.next() {
				f.expect(OutcomeCut)
				return
			}
			f.expect(OutcomeOK)
			_, _ = io.WriteString(conn, line)
		}
	})
	report := runFaults(t, Config{TCPAddress: server.listener.Addr().String()})
	compare(t, server, report, ClassTCP)
	if report.Lost != 0 || report.Total != 0 {
		t.Errorf("tcp counts as HTTP: %s", report)
	}
}
