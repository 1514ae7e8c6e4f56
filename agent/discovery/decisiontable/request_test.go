package decisiontable

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// request is a request to a workload.
type request struct {
	tcp      bool // the request is a line to the TCP port
	method   string
	path     string // path, sent unchanged
	host     string
	headers  [][2]string
	source   string // address of the client
	identity string // SPIFFE ID in the client's certificate; "": plain text
	sni      string
	body     string
}

func (r *request) String() string {
	if r.tcp {
		return fmt.Sprintf("TCP from %s, identity %q, server name %q", r.source, r.identity, r.sni)
	}
	text := fmt.Sprintf("%s %s, host %s, from %s", r.method, r.path, r.host, r.source)
	if r.identity != "" {
		text += fmt.Sprintf(", identity %s, server name %q", r.identity, r.sni)
	}
	for _, h := range r.headers {
		text += fmt.Sprintf(", %s: %s", h[0], h[1])
	}
	return text
}

// answer is what a client receives for a request.
type answer struct {
	Closed bool // the connection was closed without a response
	Status int
	Header http.Header
	Body   string
	Called string // external authorizer that was called
}

// result returns the status, or a text if there is none.
func (a answer) result() string {
	if a.Closed {
		return "closed"
	}
	return fmt.Sprint(a.Status)
}

func (a answer) diff(b answer) string { return cmp.Diff(a, b) }

// changing are the headers of responses that differ each time, and the name of the operation in
// traces, which only istiod sets.
var changing = []string{"Date", "X-Envoy-Upstream-Service-Time", "X-Envoy-Decorator-Operation"}

// send sends the request to the workload of a case, and returns the answer.
func (r *request) send(t testing.TB, c *testCase, pki *identities) answer {
	t.Helper()
	port := c.port
	if r.tcp {
		port = c.tcpPort
	}
	dialer := net.Dialer{Timeout: 10 * time.Second,
		LocalAddr: &net.TCPAddr{IP: net.ParseIP(r.source)}}
	raw, err := dialer.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return answer{Closed: true, Body: "refused"}
	}
	defer func() { _ = raw.Close() }()
	_ = raw.SetDeadline(time.Now().Add(20 * time.Second))
	connection := raw
	if r.identity != "" {
		connection = tls.Client(raw, &tls.Config{InsecureSkipVerify: true, ServerName: r.sni,
			NextProtos:   []string{"istio-http/1.1", "istio"},
			Certificates: []tls.Certificate{*pki.certificate(t, r.identity)}})
	}
	if r.tcp {
		_, _ = io.WriteString(connection, "hello\n")
		line, err := bufio.NewReader(connection).ReadString('\n')
		return answer{Closed: err != nil, Body: line}
	}
	text := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\n", r.method, r.path, r.host)
	for _, h := range r.headers {
		text += fmt.Sprintf("%s: %s\r\n", h[0], h[1])
	}
	if r.body != "" {
		text += fmt.Sprintf("Content-Length: %d\r\n", len(r.body))
	}
	_, _ = io.WriteString(connection, text+"\r\n"+r.body)
	response, err := http.ReadResponse(bufio.NewReader(connection),
		&http.Request{Method: r.method})
	if err != nil {
		return answer{Closed: true}
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%s: %v", r, err)
	}
	for _, name := range changing {
		response.Header.Del(name)
	}
	return answer{Status: response.StatusCode, Header: response.Header, Body: string(body)}
}

func (i *identities) certificate(t testing.TB, id string) *tls.Certificate {
	t.Helper()
	if found, ok := i.issued[id]; ok {
		return found
	}
	chain, key := i.issue(t, id)
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	i.issued[id] = &pair
	return &pair
}
