package sts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

func errorCode(err error) (string, bool) {
	known, ok := errors.AsType[*Error](err)
	if !ok {
		return "", false
	}
	return known.Code, true
}

// rig is a running server that exchanges tokens with a fakeGoogle.
type rig struct {
	*Server
	t      *testing.T
	google *fakeGoogle
	board  *condition.Registry
	url    string

	log parts.SyncBuffer
}

func start(t *testing.T, tokenFile string) *rig {
	t.Helper()
	google, fake := startGoogle(t, "audience", "")
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(parts.FreePort(t)))
	r := &rig{t: t, google: fake, board: condition.NewRegistry(), url: "http://" + address}
	r.Server = NewServer(Options{Address: address, Google: google,
		TokenFile: tokenFile, TrustedUIDs: []uint32{uint32(os.Geteuid())},
		Conditions: r.board, Logger: slog.New(slog.NewTextHandler(&r.log,
			&slog.HandlerOptions{Level: slog.LevelDebug}))})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for _, token := range []string{subject, federated, accessToken} {
			if strings.Contains(r.log.String(), token) {
				t.Errorf("the log has a token: %s", r.log.String())
			}
		}
	})
	parts.Eventually(t, time.Minute, "the server listens", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return r
}

func form(subject string) url.Values {
	return url.Values{"grant_type": {grantType}, "subject_token": {subject},
		"subject_token_type": {typeJWT}}
}

// post sends a form to /token and returns the status and the decoded response.
func (r *rig) post(form url.Values) (int, map[string]any) {
	r.t.Helper()
	response, err := http.PostForm(r.url+"/token", form)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var body map[string]any
	if err := json.NewDecoder(response.Body).Decode(&body); err != nil {
		r.t.Fatal(err)
	}
	if response.Header.Get("Cache-Control") != "no-store" {
		r.t.Errorf("headers %v", response.Header)
	}
	return response.StatusCode, body
}

func (r *rig) condition(code string) string {
	for _, c := range r.board.Conditions() {
		if c.Code == code {
			return c.Sentence
		}
	}
	return ""
}

func TestToken_AnswersAsRFC8693(t *testing.T) {
	r := start(t, "")
	status, body := r.post(form(subject))
	expires, _ := body["expires_in"].(float64)
	if status != 200 || body["access_token"] != federated || body["token_type"] != "Bearer" ||
		body["issued_token_type"] != typeAccess || expires < 3500 {
		t.Errorf("status %d, %v", status, body)
	}
}

func TestToken_FailureRaisesAConditionUntilTheNextSuccess(t *testing.T) {
	r := start(t, "")
	r.google.set(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
	})
	if status, body := r.post(form(subject)); status != 503 || body["error"] != unavailable {
		t.Errorf("status %d, %v", status, body)
	}
	if said := r.condition(conditionFailed); !strings.Contains(said, "502") {
		t.Errorf("condition %q", said)
	}
	r.google.set(nil)
	if status, _ := r.post(form(subject)); status != 200 || r.condition(conditionFailed) != "" {
		t.Errorf("status %d, condition %q", status, r.condition(conditionFailed))
	}
	if stats := r.Stats(); stats != (Stats{Exchanges: 2, Failures: 1}) {
		t.Errorf("%+v", stats)
	}
}

func TestToken_SubjectFromTheTokenFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	r := start(t, file)
	if status, body := r.post(form("")); status != 503 {
		t.Errorf("without the file: status %d, %v", status, body)
	}
	for _, token := range []string{"first", "second"} {
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if status, body := r.post(form("")); status != 200 {
			t.Errorf("status %d, %v", status, body)
		}
		received := r.google.received()
		if got := received[len(received)-1].Get("subject_token"); got != token {
			t.Errorf("Google received %q, want %q", got, token)
		}
	}
}

func TestToken_RefusesInvalidRequests(t *testing.T) {
	r := start(t, "")
	cases := map[string]struct {
		change func(url.Values)
		code   string
	}{
		"no subject":      {func(f url.Values) { f.Del("subject_token") }, InvalidRequest},
		"no subject type": {func(f url.Values) { f.Del("subject_token_type") }, InvalidRequest},
		"grant type":      {func(f url.Values) { f.Set("grant_type", "password") }, unsupported},
		"token type": {func(f url.Values) { f.Set("requested_token_type", typeJWT) },
			InvalidRequest},
		"actor":    {func(f url.Values) { f.Set("actor_token", "a") }, InvalidRequest},
		"resource": {func(f url.Values) { f.Set("resource", "a") }, InvalidTarget},
		"twice":    {func(f url.Values) { f.Add("scope", "a"); f.Add("scope", "b") }, InvalidRequest},
		"too large": {func(f url.Values) { f.Set("scope", strings.Repeat("a", maximumBody)) },
			InvalidRequest},
	}
	for name, c := range cases {
		f := form(subject)
		c.change(f)
		status, body := r.post(f)
		description, _ := body["error_description"].(string)
		if status != 400 || body["error"] != c.code || description == "" ||
			strings.Contains(description, subject) {
			t.Errorf("%s: status %d, %v", name, status, body)
		}
	}
	response, err := http.Post(r.url+"/token", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusBadRequest || len(r.google.received()) > 0 {
		t.Errorf("JSON: status %d, Google received %v", response.StatusCode, r.google.received())
	}
}

func TestStatus_ShowsExpiryButNoToken(t *testing.T) {
	r := start(t, "")
	r.post(form(subject))
	response, err := http.Get(r.url + "/stsStatus")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var shown struct{ Tokens []status }
	if err := json.Unmarshal(body, &shown); err != nil || len(shown.Tokens) != 1 ||
		time.Until(shown.Tokens[0].Expiry) < 50*time.Minute ||
		bytes.Contains(body, []byte(federated)) {
		t.Errorf("%s, error %v", body, err)
	}
}

func TestToken_RefusesWebPages(t *testing.T) {
	r := start(t, "")
	_, port, _ := strings.Cut(strings.TrimPrefix(r.url, "http://"), ":")
	for _, c := range []struct {
		host, origin string
		want         int
	}{
		{"127.0.0.1:" + port, "", 200}, {"localhost", "", 200}, {"[::1]:" + port, "", 200},
		{"rebound.example:" + port, "", 403}, {"rebound.example", "", 403},
		{"localhost:" + port, "https://site.example", 403}, {"127.0.0.1.example", "", 403},
	} {
		request, err := http.NewRequest(http.MethodPost, r.url+"/token",
			strings.NewReader(form(subject).Encode()))
		if err != nil {
			t.Fatal(err)
		}
		request.Host = c.host
		request.Header.Set("Content-Type", formType)
		if c.origin != "" {
			request.Header.Set("Origin", c.origin)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != c.want {
			t.Errorf("%+v: status %d", c, response.StatusCode)
		}
	}
}

func TestToken_ExchangesAreBounded(t *testing.T) {
	r := start(t, "")
	r.google.hold = make(chan struct{})
	var group sync.WaitGroup
	for i := range maximumExchanges {
		group.Go(func() {
			if status, body := r.post(form(subject + strconv.Itoa(i))); status != 200 {
				t.Errorf("status %d, %v", status, body)
			}
		})
	}
	parts.Eventually(t, time.Minute, "all exchanges", func() bool {
		return len(r.google.received()) == maximumExchanges
	})
	if status, body := r.post(form(subject)); status != 503 {
		t.Errorf("one more: status %d, %v", status, body)
	}
	close(r.google.hold)
	group.Wait()
	if status, body := r.post(form(subject)); status != 200 {
		t.Errorf("afterwards: status %d, %v", status, body)
	}
}

func TestToken_RefusesOtherUsers(t *testing.T) {
	r := start(t, "")
	parts.RunAs(t, parts.NobodyUID, func() {
		c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = c.Close() }()
		answer, err := io.ReadAll(c)
		if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 403 ")) ||
			!bytes.HasSuffix(answer, []byte(refusalBody)) {
			t.Errorf("answer %q, error %v", answer, err)
		}
	})
}

func TestRun_WaitsForThePort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	board := condition.NewRegistry()
	s := NewServer(Options{Address: taken.Addr().String(), Conditions: board,
		Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	parts.Eventually(t, time.Minute, "a condition",
		func() bool { return len(board.Conditions()) == 1 })
	_ = taken.Close()
	parts.Eventually(t, time.Minute, "no condition",
		func() bool { return len(board.Conditions()) == 0 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(formType, form(subject).Encode())
	f.Add(formType+"; charset=utf-8", "grant_type="+grantType)
	f.Add("", "%zz&a=;&=")
	f.Fuzz(func(t *testing.T, contentType, body string) {
		request, err := parse(contentType, body)
		if (err == nil) != (request != Request{}) {
			t.Errorf("request %+v, error %v", request, err)
		}
		if err == nil && request.SubjectTokenType == "" {
			t.Errorf("a request without the type of its subject token: %+v", request)
		}
		if _, ok := errorCode(err); err != nil && !ok {
			t.Errorf("the error %v has no code", err)
		}
	})
}
