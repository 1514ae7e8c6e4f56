package jwks_test

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/jwks"
	"outrider.org/outrider/agent/recordfile"
	"outrider.org/outrider/scripts/parts"
)

// issuer is an HTTPS server that serves key sets.
type issuer struct {
	*httptest.Server
	answer   atomic.Pointer[http.HandlerFunc]
	requests atomic.Int32
}

func newIssuer(t *testing.T) *issuer {
	i := &issuer{}
	i.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.requests.Add(1)
		(*i.answer.Load())(w, r)
	}))
	t.Cleanup(i.Close)
	i.text(set("one"))
	return i
}

func (i *issuer) handle(h http.HandlerFunc) { i.answer.Store(&h) }

func (i *issuer) text(text string) {
	i.handle(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) })
}

func set(kids ...string) string {
	var keys []string
	for _, kid := range kids {
		keys = append(keys, fmt.Sprintf(`{"kty":"RSA","kid":%q,"n":"AQAB","e":"AQAB"}`, kid))
	}
	return `{"keys":[` + strings.Join(keys, ",") + `]}`
}

// rig is a running Fetcher with its condition.Registry.
type rig struct {
	*jwks.Fetcher
	board *condition.Registry
	stop  func()
}

func start(t *testing.T, i *issuer, change func(*jwks.Options)) *rig {
	r := &rig{board: condition.NewRegistry()}
	roots := x509.NewCertPool()
	roots.AddCert(i.Certificate())
	o := jwks.Options{AllowsLocalAddress: func(host string) bool { return host == "127.0.0.1" },
		Roots:   func() *x509.CertPool { return roots },
		Refresh: 5 * time.Millisecond, Conditions: r.board}
	if change != nil {
		change(&o)
	}
	r.Fetcher = jwks.New(o)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	r.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(r.stop)
	return r
}

// sentence returns the sentence of a condition, "" if the condition is not raised.
func (r *rig) sentence(code string) string {
	for _, c := range r.board.Conditions() {
		if c.Code == code {
			return string(c.Severity) + ": " + c.Sentence
		}
	}
	return ""
}

func (r *rig) awaitKeys(t *testing.T, from jwks.Source, want string) {
	t.Helper()
	parts.Eventually(t, time.Minute, want, func() bool { return r.KeySet(from) == want })
}

func (r *rig) awaitProblem(t *testing.T, want ...string) {
	t.Helper()
	parts.Eventually(t, time.Minute, strings.Join(want, " and "), func() bool {
		for _, w := range want {
			if !strings.Contains(r.sentence(jwks.ConditionUnavailable), w) {
				return false
			}
		}
		return true
	})
}

// The last good key set stays in use after any invalid response, and after a restart of the Fetcher
// while the server is down.
func TestFetcher_RetainsLastGoodKeys(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	file := filepath.Join(t.TempDir(), "key-sets")
	from := jwks.SourceOf("https://issuer.test", i.URL+"/keys?secret=no")
	inFile := func(o *jwks.Options) { o.File = file }
	r := start(t, i, inFile)
	need := map[jwks.Source]time.Duration{from: 2 * time.Second}
	r.SetSources(need)
	r.awaitKeys(t, from, set("one"))
	for want, h := range map[string]http.HandlerFunc{
		"the response is larger than 128 KiB": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(strings.Repeat(" ", 128<<10) + set("huge")))
		},
		"the server answers 500 Internal Server Error": func(w http.ResponseWriter,
			_ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
		},
		"the key set is not a JSON object": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("<html>"))
		},
		`the key set has no list "keys"`: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("{}"))
		},
		"the server redirects to a URL without": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1/", http.StatusFound)
		},
		"without https, or too often": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/again", http.StatusFound)
		},
		"169.254.169.254 is a local address": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://169.254.169.254/latest", http.StatusFound)
		},
		"is a local address": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, strings.Replace(i.URL, "127.0.0.1", "localhost", 1),
				http.StatusFound)
		},
	} {
		i.handle(h)
		r.awaitProblem(t, "warning: ", want, "remain in use")
		if got := r.KeySet(from); got != set("one") {
			t.Errorf("%s: %s", want, got)
		}
		i.text(set("one"))
		parts.Eventually(t, time.Minute, "recovered", func() bool {
			return r.sentence(jwks.ConditionUnavailable) == ""
		})
	}
	i.text(set("two", "three"))
	r.awaitKeys(t, from, set("two", "three"))
	i.text(set("three", "two")) // the same keys in another order, which is no change
	requests := i.requests.Load()
	parts.Eventually(t, time.Minute, "two fetches", func() bool {
		return i.requests.Load() > requests+2
	})
	r.awaitKeys(t, from, set("two", "three"))
	r.stop()
	i.Close()
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}

	r = start(t, i, inFile)
	if got := r.KeySet(from); got != set("two", "three") {
		t.Errorf("after a restart: %s", got)
	}
	r.SetSources(need)
	r.awaitProblem(t, "warning: ", "connection refused", "remain in use")
	r.stop()

	if err := os.WriteFile(file, []byte("not such a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	r = start(t, i, inFile)
	r.SetSources(need)
	r.awaitProblem(t, "error: ", "all tokens that need it are refused")
	if got := r.KeySet(from); got != "" {
		t.Errorf("with a broken file: %s", got)
	}
	r.SetSources(nil)
	parts.Eventually(t, time.Minute, "no condition", func() bool {
		return r.sentence(jwks.ConditionUnavailable) == ""
	})
}

// A stored key set is retained as long as it is required, however old it is. Old ones that are not
// required are removed.
func TestFetcher_RetainsOldKeys(t *testing.T) {
	t.Parallel()
	i, file := newIssuer(t), filepath.Join(t.TempDir(), "key-sets")
	i.Close()
	record := func(path string) recordfile.Record {
		return recordfile.Record{Kind: 'k', Text: fmt.Appendf(nil,
			`{"uri":%q,"fetched":"2020-01-01T00:00:00Z","text":%q}`, i.URL+path, set("old"))}
	}
	format := recordfile.Format{Header: "outrider key sets 1\n", MaxBytes: 1 << 20}
	if err := format.Write(file, slices.Values([]recordfile.Record{record("/a"),
		record("/b")})); err != nil {
		t.Fatal(err)
	}
	r := start(t, i, func(o *jwks.Options) { o.File = file })
	a, b := jwks.SourceOf("", i.URL+"/a"), jwks.SourceOf("", i.URL+"/b")
	r.awaitKeys(t, b, set("old"))
	r.SetSources(map[jwks.Source]time.Duration{a: 0})
	r.awaitProblem(t, "warning: ", "the keys of 2020-01-01T00:00:00Z remain in use")
	r.awaitKeys(t, b, "")
	r.awaitKeys(t, a, set("old"))
}

// A server that does not respond delays only its own key set, and its fetch fails after the
// timeout.
func TestFetcher_SlowServerDelaysNoOther(t *testing.T) {
	t.Parallel()
	i, slow := newIssuer(t), make(chan struct{})
	defer close(slow)
	i.handle(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			select {
			case <-slow:
			case <-r.Context().Done():
			}
			return
		}
		_, _ = w.Write([]byte(set("fast")))
	})
	r := start(t, i, nil)
	late, fast := jwks.SourceOf("", i.URL+"/slow"), jwks.SourceOf("", i.URL+"/fast")
	r.SetSources(map[jwks.Source]time.Duration{late: 50 * time.Millisecond, fast: 0})
	r.awaitKeys(t, fast, set("fast"))
	r.awaitProblem(t, "error: ", "no answer within 50ms")
}

// Without a URI, the key set is fetched from the jwks_uri in the issuer's OpenID configuration.
func TestFetcher_Discovery(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	configuration := atomic.Value{}
	configuration.Store(fmt.Sprintf(`{"jwks_uri": %q}`, i.URL+"/keys"))
	i.handle(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/tenant/.well-known/openid-configuration":
			_, _ = w.Write([]byte(configuration.Load().(string)))
		case "/keys":
			_, _ = w.Write([]byte(set("found")))
		}
	})
	r := start(t, i, nil)
	from := jwks.SourceOf(i.URL+"/tenant/", "")
	r.SetSources(map[jwks.Source]time.Duration{from: 0,
		jwks.SourceOf("someone@example.com", ""): 0})
	r.awaitKeys(t, from, set("found"))
	r.awaitProblem(t, "someone@example.com: not an http or https URL")
	for want, text := range map[string]string{"is not JSON": "", "has no jwks_uri": "{}",
		"that is not https": `{"jwks_uri": "http://127.0.0.1/keys"}`} {
		configuration.Store(text)
		r.awaitProblem(t, want)
	}
}

// If too many sources are required, only the first 256 are fetched, and at most 8 at the same time.
func TestFetcher_IsBounded(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	var now, most atomic.Int32
	i.handle(func(w http.ResponseWriter, _ *http.Request) {
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		_, _ = w.Write([]byte(set("one")))
	})
	r := start(t, i, func(o *jwks.Options) { o.Refresh = time.Hour })
	need := map[jwks.Source]time.Duration{}
	for n := range 260 {
		need[jwks.SourceOf("", fmt.Sprintf("%s/%03d", i.URL, n))] = 0
	}
	r.SetSources(need)
	r.awaitKeys(t, jwks.SourceOf("", i.URL+"/255"), set("one"))
	r.awaitProblem(t, "error: ", i.URL+"/256 is not fetched, as there are more than 256")
	if got := r.KeySet(jwks.SourceOf("", i.URL+"/256")); got != "" {
		t.Errorf("one more: %s", got)
	}
	if most.Load() > 8 {
		t.Errorf("%d fetches at a time", most.Load())
	}
}

func TestFetcher_SecretsAreNotReported(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	i.text("")
	r := start(t, i, nil)
	r.SetSources(map[jwks.Source]time.Duration{
		jwks.SourceOf("", strings.Replace(i.URL, "//", "//user:password@", 1)+"?key=secret"): 0})
	r.awaitProblem(t, "error: ")
	if text := r.sentence(jwks.ConditionUnavailable); strings.Contains(text, "password") ||
		strings.Contains(text, "secret") {
		t.Error(text)
	}
}
