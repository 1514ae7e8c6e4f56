package backend

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAnswers(t *testing.T) {
	server, err := Start(Config{Name: "b1", HTTP: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	cases := []struct {
		path, body string
		status     int
		want       string
		atLeast    time.Duration
	}{
		{path: "/", status: 200, want: "b1 answers HTTP/1.1 POST / for "},
		{path: "/any/thing?x=1", status: 200, want: "POST /any/thing?x=1 for "},
		{path: "/headers", status: 200, want: "x-test: yes\n"},
		{path: "/echo", body: "hello", status: 200, want: "hello"},
		{path: "/status/503", status: 503, want: "b1 answers"},
		{path: "/status/99", status: 400, want: "between 200 and 599"},
		{path: "/sleep/soon", status: 400, want: "invalid duration"},
		{path: "/sleep/50ms/status/404", status: 404, want: "b1 answers",
			atLeast: 50 * time.Millisecond},
	}
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		protocols := &http.Protocols{}
		protocols.SetHTTP1(protocol == "HTTP/1.1")
		protocols.SetUnencryptedHTTP2(protocol == "HTTP/2.0")
		transport := &http.Transport{Protocols: protocols}
		for _, c := range cases {
			start := time.Now()
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
				"http://"+server.HTTPAddress()+c.path, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("x-test", "yes")
			response, err := transport.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Error(err)
			}
			_ = response.Body.Close()
			want := strings.ReplaceAll(c.want, "HTTP/1.1", protocol)
			if response.StatusCode != c.status || !strings.Contains(string(body), want) ||
				response.Header.Get("x-backend") != "b1" {
				t.Errorf("%s %s: %d %q", protocol, c.path, response.StatusCode, body)
			}
			if took := time.Since(start); took < c.atLeast {
				t.Errorf("%s took %v", c.path, took)
			}
		}
		transport.CloseIdleConnections()
	}
}

func TestEcho(t *testing.T) {
	server, err := Start(Config{Name: "b1", TCP: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	conn, err := net.Dial("tcp", server.TCPAddress())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 5)
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "hello" {
		t.Errorf("%q, %v", answer, err)
	}
	server.Close()
	if n, err := conn.Read(answer); err == nil {
		t.Errorf("%d bytes after Close", n)
	}
}
