package discovery_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// exchange is a request of a case, or several equal ones, with the expected response.
type exchange struct {
	where    string
	ask      []string // lines of the case that begin with >
	expect   []string // lines of the case that begin with <
	times    int
	parallel int  // number of concurrent requests; 0 means one
	later    bool // from this request on, the objects of later.yaml are in force
	replies  []reply
}

// options are the names of request lines that are settings of the request, not headers.
var options = []string{"times", "parallel", "to", "proxy", "http", "certificate", "tls", "cipher",
	"alpn"}

func readExchanges(t *testing.T, path, text string) []*exchange {
	var all []*exchange
	var current *exchange
	later := false
	for i, line := range strings.Split(text, "\n") {
		kind, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case line == "= later.yaml":
			later = true
		case kind == ">" && (current == nil || len(current.expect) > 0):
			current = &exchange{where: fmt.Sprintf("%s: requests, line %d", path, i+1),
				ask: []string{rest}, times: 1, later: later}
			later = false
			all = append(all, current)
		case kind == ">":
			current.ask = append(current.ask, rest)
		case kind == "<" && current != nil:
			current.expect = append(current.expect, rest)
		default:
			t.Fatalf("%s: requests, line %d: %q", path, i+1, line)
		}
	}
	return all
}

// reply is the response to a request, or its error.
type reply struct {
	status  int
	header  http.Header
	body    string
	seen    echo
	elapsed time.Duration
	err     error
}

// must sends the requests, and fails the test unless the responses are as expected.
func (x *exchange) must(t *testing.T, port int) {
	t.Helper()
	for _, difference := range x.run(port) {
		t.Error(difference)
	}
}

// run sends the requests, and returns the differences between responses and expectations.
func (x *exchange) run(port int) (differences []string) {
	to := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	method, target, _ := strings.Cut(x.ask[0], " ")
	headers := http.Header{}
	for _, line := range x.ask[1:] {
		name, value, _ := strings.Cut(line, ": ")
		switch name {
		case "times":
			x.times, _ = strconv.Atoi(value)
			continue
		case "parallel":
			x.parallel, _ = strconv.Atoi(value)
			continue
		case "to":
			to = value
			continue
		case "proxy":
			to = value
		}
		headers.Add(name, value)
	}
	x.replies = make([]reply, x.times)
	var atOnce errgroup.Group
	atOnce.SetLimit(max(x.parallel, 1))
	for i := range x.replies {
		atOnce.Go(func() error {
			if method == "TCP" {
				x.replies[i] = exchangeTCP(to, target)
			} else {
				x.replies[i] = exchangeHTTP(method, target, to, headers)
			}
			return nil
		})
	}
	_ = atOnce.Wait()
	for _, want := range x.expect {
		if what, _, _ := strings.Cut(want, " "); slices.Contains(beside, what) {
			continue
		}
		if problem := x.check(want); problem != "" {
			differences = append(differences, fmt.Sprintf("%s: %s\n want %s\n %s", x.where,
				strings.Join(x.ask, " | "), want, problem))
		}
	}
	return differences
}

func exchangeTCP(to, text string) (r reply) {
	connection, err := net.DialTimeout("tcp", to, 20*time.Second)
	if err != nil {
		return reply{err: err}
	}
	defer func() { _ = connection.Close() }()
	_ = connection.SetDeadline(time.Now().Add(20 * time.Second))
	if text != "" {
		if _, err := fmt.Fprintln(connection, text); err != nil {
			return reply{err: err}
		}
	}
	r.body, r.err = bufio.NewReader(connection).ReadString('\n')
	return r
}

func exchangeHTTP(method, target, to string, headers http.Header) (r reply) {
	scheme, rest, ok := strings.Cut(target, "://")
	if !ok {
		scheme, rest = "http", target
	}
	host, path, _ := strings.Cut(rest, "/")
	headers = headers.Clone()
	config, err := clientTLS(host, headers)
	if err != nil {
		return reply{err: err}
	}
	protocols := &http.Protocols{}
	protocols.SetHTTP1(headers.Get("http") != "2")
	protocols.SetUnencryptedHTTP2(headers.Get("http") == "2")
	headers.Del("http")
	transport := &http.Transport{Protocols: protocols, DisableKeepAlives: true,
		TLSClientConfig: config,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, to)
		}}
	if proxy := headers.Get("proxy"); proxy != "" {
		transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: proxy})
		headers.Del("proxy")
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second,
		CheckRedirect: func(*http.Request,
			[]*http.Request) error {
			return http.ErrUseLastResponse
		}}
	request, err := http.NewRequest(method, scheme+"://"+host+"/"+path, nil)
	if err != nil {
		return reply{err: err}
	}
	request.Header = headers
	started := time.Now()
	answer, err := client.Do(request)
	r.elapsed = time.Since(started)
	if scheme == "https" && (errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, net.ErrClosed)) {
		err = fmt.Errorf("%w: %w", err, hungUp(to, transport.TLSClientConfig))
	}
	if err != nil {
		return reply{err: err}
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	r.status, r.header, r.body, r.err = answer.StatusCode, answer.Header, string(body), err
	if answer.Header.Get("x-backend") != "" {
		_ = json.NewDecoder(bytes.NewReader(body)).Decode(&r.seen)
	}
	return r
}

// hungUp returns why a server closed the connection after the handshake of TLS 1.3, in which it
// verifies the client's certificate last. A client that writes may notice the closed connection
// before it reads the alert, so hungUp only reads.
func hungUp(to string, config *tls.Config) error {
	connection, err := tls.Dial("tcp", to, config)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	_ = connection.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err = connection.Read(make([]byte, 1))
	return err
}

// check compares the responses with one expectation. It returns the difference, or "".
func (x *exchange) check(want string) string {
	what, value, _ := strings.Cut(want, " ")
	switch what {
	case "share":
		return x.share(value, func(r reply) string { return r.seen.Backend })
	case "statuses":
		return x.share(value, func(r reply) string { return strconv.Itoa(r.status) })
	case "same":
		for _, r := range x.replies {
			if got, first := r.get(value, ""), x.replies[0].get(value, ""); got != first {
				return fmt.Sprintf("got  %s and %s", first, got)
			}
		}
		return ""
	}
	for _, r := range x.replies {
		if got := r.get(what, value); !matches(got, value) {
			return fmt.Sprintf("got  %s (status %d, error %v, body %q, header %v)", got, r.status,
				r.err, r.body, r.header)
		}
	}
	return ""
}

// get returns the property of a response that an expectation is about (what), in the notation of
// expectations.
func (r reply) get(what, value string) string {
	header := func(h http.Header) string {
		name, _, _ := strings.Cut(value, ":")
		if values := h.Values(name); len(values) > 0 {
			return name + ": " + strings.Join(values, ",")
		}
		return name + ": (none)"
	}
	switch what {
	case "any":
		return ""
	case "status":
		return strconv.Itoa(r.status)
	case "backend":
		return r.seen.Backend
	case "path":
		return r.seen.Path
	case "query":
		return r.seen.Query
	case "host":
		return r.seen.Host
	case "proto":
		return r.seen.Proto
	case "saw":
		return header(r.seen.Headers)
	case "header":
		return header(r.header)
	case "body":
		return strings.TrimSpace(r.body)
	case "error":
		return fmt.Sprint(r.err)
	case "elapsed":
		low, high, _ := strings.Cut(value, "-")
		from, _ := time.ParseDuration(low)
		to, _ := time.ParseDuration(high)
		if r.elapsed >= from && r.elapsed <= to {
			return value
		}
		return r.elapsed.String()
	}
	return "unknown expectation " + what
}

// matches reports whether got equals want, or matches it if want is "~EXPRESSION" or "NAME:
// ~EXPRESSION", with a regular expression.
func matches(got, want string) bool {
	if name, expression, ok := strings.Cut(want, "~"); ok && (name == "" || strings.HasSuffix(name,
		": ")) {
		return regexp.MustCompile("^" + regexp.QuoteMeta(name) + "(?:" + expression +
			")$").MatchString(got)
	}
	return got == want
}

// share compares the percentage of responses that have a value with an expectation such as "a
// 60-80".
func (x *exchange) share(value string, of func(reply) string) string {
	var name string
	var low, high int
	if _, err := fmt.Sscanf(value, "%s %d-%d", &name, &low, &high); err != nil {
		return err.Error()
	}
	count := 0
	for _, r := range x.replies {
		if of(r) == name {
			count++
		}
	}
	if percent := 100 * count / len(x.replies); percent < low || percent > high {
		return fmt.Sprintf("got  %d %%", percent)
	}
	return ""
}
