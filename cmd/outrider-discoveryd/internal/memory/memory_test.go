package memory

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/record"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source/sourcetest"
	"outrider.org/outrider/scripts/parts"
)

const entry = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec: {hosts: [web.test], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}]}
`

const policy = `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: web, namespace: shop}
spec: {}
`

// served collects what a source has delivered.
type served struct{ sourcetest.Receiver }

// String returns the paths of the collected inputs, with the names of decoded objects.
func (s *served) String() string {
	var all []string
	for _, path := range s.Paths() {
		in, _ := s.Input(path)
		for _, o := range in.Objects {
			path += " " + o.Name
		}
		all = append(all, path)
	}
	return strings.Join(all, ", ")
}

// configure returns the configuration of a source that requires the token "secret".
func configure(t *testing.T) *config.Source {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return &config.Source{Name: "memory", TokenFile: token,
		Listen: fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))}
}

// send waits until a source listens, sends a request and returns the response.
func send(t *testing.T, m *Source, method, path, token, body string) (status int, text string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	parts.EventuallyWithObservation(t, time.Minute, "the write API answers", func() (bool, string) {
		request, err := http.NewRequestWithContext(t.Context(), method,
			"http://"+m.config.Listen+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(request)
		if err != nil {
			return false, err.Error()
		}
		defer func() { _ = response.Body.Close() }()
		content, err := io.ReadAll(response.Body)
		status, text = response.StatusCode, string(content)
		return err == nil, fmt.Sprint(err)
	})
	return status, text
}

// TestMemory_WriteAPI sends a sequence of requests. It checks the response to each one, and the
// inputs that the source has delivered by then.
func TestMemory_WriteAPI(t *testing.T) {
	const path, other = "/objects/ServiceEntry/shop/web", "/objects/AuthorizationPolicy/shop/web"
	for _, kind := range []struct {
		registry bool
		served   string
		policy   int    // response status for an AuthorizationPolicy
		both     string // inputs delivered after the PUTs of both objects
	}{
		{false, "memory:ServiceEntry/shop/web", http.StatusNoContent,
			"memory:AuthorizationPolicy/shop/web, memory:ServiceEntry/shop/web"},
		{true, "memory:ServiceEntry/shop/web service:web", http.StatusUnprocessableEntity,
			"memory:ServiceEntry/shop/web service:web"},
	} {
		now := &served{}
		m := New(configure(t), kind.registry, now.AcceptUpdate, slog.New(slog.DiscardHandler))
		sourcetest.Run(t, m.Run)
		for _, test := range []struct {
			method, path, token, body string
			status                    int
			says, served              string
		}{
			{"PUT", path, "", entry, http.StatusUnauthorized, "send Authorization", ""},
			{"PUT", path, "secre", entry, http.StatusUnauthorized, "send Authorization", ""},
			{"GET", path, "secret", "", http.StatusNotFound, "", ""},
			{"PUT", path, "secret", "", http.StatusUnprocessableEntity, "has no object", ""},
			{"PUT", path, "secret", strings.Replace(entry, "STATIC", "X", 1),
				http.StatusUnprocessableEntity, "spec.resolution", ""},
			{"PUT", path + "2", "secret", entry, http.StatusUnprocessableEntity,
				"write it to /objects/ServiceEntry/shop/web", ""},
			{"PUT", path, "secret", entry + "---\n" + strings.ReplaceAll(entry, "web", "api"),
				http.StatusUnprocessableEntity, "has several objects", ""},
			{"PUT", path, "secret", strings.Repeat("#", maxBody+1),
				http.StatusRequestEntityTooLarge, "at most", ""},
			{"PUT", path, "secret", entry, http.StatusNoContent, "", kind.served},
			{"GET", path, "secret", "", http.StatusOK, "web.test", kind.served},
			{"POST", path, "secret", entry, http.StatusMethodNotAllowed, "", kind.served},
			{"PUT", other, "secret", policy, kind.policy, "", kind.both},
			{"DELETE", other, "secret", "", http.StatusNoContent, "", kind.served},
			{"DELETE", path, "secret", "", http.StatusNoContent, "", ""},
			{"DELETE", path, "secret", "", http.StatusNoContent, "", ""},
		} {
			status, says := send(t, m, test.method, test.path, test.token, test.body)
			if status != test.status || !strings.Contains(says, test.says) {
				t.Errorf("%s %s: %d %s", test.method, test.path, status, says)
			}
			if got := now.String(); got != test.served {
				t.Errorf("after %s %s: %q is served", test.method, test.path, got)
			}
		}
		if s := m.Status(); !s.Synced || s.Inputs != 0 || s.Err != nil || m.bytes != 0 {
			t.Errorf("%+v, %d bytes", s, m.bytes)
		}
	}
}

// TestMemory_BoundsTimeOfBodies sends the header of a request without a token, and no body. The
// server must close the connection.
func TestMemory_BoundsTimeOfBodies(t *testing.T) {
	m := New(configure(t), false, (&served{}).AcceptUpdate, slog.New(slog.DiscardHandler))
	sourcetest.Run(t, m.Run)
	send(t, m, http.MethodGet, "/", "", "") // returns once the source listens
	connection, err := net.Dial("tcp", m.config.Listen)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	_, _ = io.WriteString(connection, "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
	_ = connection.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.Copy(io.Discard, connection); err != nil {
		t.Errorf("the connection is still open: %v", err)
	}
}

// TestMemory_RefusesTokenFileThatIsNoFile replaces the token file by one that is too large, and by
// a FIFO without a writer. Requests must be refused without waiting.
func TestMemory_RefusesTokenFileThatIsNoFile(t *testing.T) {
	m := New(configure(t), false, (&served{}).AcceptUpdate, slog.New(slog.DiscardHandler))
	sourcetest.Run(t, m.Run)
	refused := func(what string) {
		t.Helper()
		status, says := send(t, m, http.MethodGet, "/objects/ServiceEntry/shop/web", "secret", "")
		if status != http.StatusUnauthorized || !strings.Contains(says, "has no token") {
			t.Errorf("%s: %d %s", what, status, says)
		}
	}
	if err := os.WriteFile(m.config.TokenFile, []byte("secret"+strings.Repeat("\n",
		pki.MaxTokenBytes)),
		0o600); err != nil {
		t.Fatal(err)
	}
	refused("large file")
	if err := errors.Join(os.Remove(m.config.TokenFile),
		unix.Mkfifo(m.config.TokenFile, 0o600)); err != nil {
		t.Fatal(err)
	}
	refused("FIFO")
}

// TestMemory_ServesWhatItHadAfterRestart restarts a source. Because access policies may be among
// its objects, they must be served until a client writes or deletes them, or until a reload.
func TestMemory_ServesWhatItHadAfterRestart(t *testing.T) {
	directory := t.TempDir()
	begin := func() (m *Source, r *record.Recorder, now *served, board *condition.Registry,
		end func()) {
		now, board = &served{}, condition.NewRegistry()
		r = record.New(directory, now.AcceptUpdate, board, slog.New(slog.DiscardHandler))
		m = New(configure(t), false, r.AcceptUpdate, slog.New(slog.DiscardHandler))
		r.SetSources([]source.Source{m})
		first, second := sourcetest.Run(t, m.Run), sourcetest.Run(t, r.Run)
		return m, r, now, board, func() { first(); second() }
	}
	change := func(m *Source, method, name string) {
		t.Helper()
		if status, says := send(t, m, method, "/objects/ServiceEntry/shop/"+name, "secret",
			strings.ReplaceAll(entry, "web", name)); status != http.StatusNoContent {
			t.Fatal(status, says)
		}
	}
	const object = "memory:ServiceEntry/shop/"
	m, _, _, _, end := begin()
	for _, name := range []string{"a", "b", "c"} {
		change(m, http.MethodPut, name)
	}
	end()

	m, recorder, now, board, _ := begin()
	parts.EventuallyWithObservation(t, time.Minute, "what the source had is served", func() (bool, string) {
		return now.String() == object+"a, "+object+"b, "+object+"c" &&
			len(board.Conditions()) == 1, now.String()
	})
	change(m, http.MethodPut, "a")
	change(m, http.MethodDelete, "b")
	if got := now.String(); got != object+"a, "+object+"c" {
		t.Errorf("after changes %s is served", got)
	}
	recorder.RemoveRetainedInputs()
	if got := now.String(); got != object+"a" || len(board.Conditions()) != 0 {
		t.Errorf("after a reload %s is served, %v", got, board.Conditions())
	}
}
