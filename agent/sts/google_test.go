package sts

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	subject     = "subject-token-of-the-vm"
	federated   = "federated-token-of-google"
	accessToken = "access-token-of-the-account"
)

// fakeGoogle is a fake of the two services of Google, which records the requests.
type fakeGoogle struct {
	mu       sync.Mutex
	forms    []url.Values
	accounts []string // paths of the requests to iamcredentials
	scopes   []string
	hold     chan struct{} // if not nil, responses wait until it is closed
	respond  http.HandlerFunc
	lifetime time.Duration
}

// startGoogle returns a GoogleExchanger that sends requests to a new fakeGoogle.
func startGoogle(t *testing.T, audience, account string) (*GoogleExchanger, *fakeGoogle) {
	t.Helper()
	fake := &fakeGoogle{lifetime: time.Hour}
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	g := NewGoogleExchanger(audience, account)
	g.federation, g.credentials = server.URL+"/v1/token", server.URL+"/accounts/"
	t.Cleanup(g.client.CloseIdleConnections)
	g.client.Transport = server.Client().Transport
	return g, fake
}

func (f *fakeGoogle) set(respond http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.respond = respond
}

func (f *fakeGoogle) received() []url.Values {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.forms)
}

func (f *fakeGoogle) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	hold, respond, lifetime := f.hold, f.respond, f.lifetime
	if r.URL.Path == "/v1/token" {
		form, _ := url.ParseQuery(string(body))
		f.forms = append(f.forms, form)
	} else {
		var request struct{ Scope []string }
		_ = json.Unmarshal(body, &request)
		f.accounts = append(f.accounts, r.URL.Path+" "+r.Header.Get("Authorization"))
		f.scopes = append(f.scopes, request.Scope...)
	}
	f.mu.Unlock()
	if hold != nil {
		<-hold
	}
	switch {
	case respond != nil:
		respond(w, r)
	case r.URL.Path == "/v1/token":
		_, _ = io.WriteString(w, `{"access_token":"`+federated+`","token_type":"Bearer",`+
			`"expires_in":`+strconv.Itoa(int(lifetime.Seconds()))+`}`)
	default:
		_, _ = io.WriteString(w, `{"accessToken":"`+accessToken+`","expireTime":"`+
			time.Now().Add(lifetime).UTC().Format(time.RFC3339)+`"}`)
	}
}

func TestGoogle_ReturnsTheTokenOfTheAccount(t *testing.T) {
	g, fake := startGoogle(t, "identitynamespace:pool:provider", "web@p.iam.gserviceaccount.com")
	token, err := g.exchange(t.Context(), Request{SubjectToken: subject, SubjectTokenType: typeJWT,
		Scope: "a b"})
	if err != nil || token.AccessToken != accessToken || time.Until(token.Expiry) < 50*time.Minute {
		t.Errorf("token %+v, error %v", token, err)
	}
	want := url.Values{"grant_type": {grantType}, "audience": {"identitynamespace:pool:provider"},
		"scope": {cloudPlatform}, "requested_token_type": {typeAccess}, "subject_token": {subject},
		"subject_token_type": {typeJWT}}
	if got := fake.received(); len(got) != 1 || got[0].Encode() != want.Encode() {
		t.Errorf("Google received %v", got)
	}
	if want := []string{"/accounts/web@p.iam.gserviceaccount.com:generateAccessToken Bearer " +
		federated}; !slices.Equal(fake.accounts, want) {
		t.Errorf("iamcredentials received %v", fake.accounts)
	}
	if !slices.Equal(fake.scopes, []string{"a", "b"}) {
		t.Errorf("scopes %v", fake.scopes)
	}
}

func TestGoogle_ReturnsTheFederatedTokenWithoutAccount(t *testing.T) {
	g, fake := startGoogle(t, "configured", "")
	token, err := g.exchange(t.Context(), Request{SubjectToken: subject, SubjectTokenType: typeJWT,
		Audience: "requested", Scope: "a"})
	if err != nil || token.AccessToken != federated || len(fake.accounts) > 0 {
		t.Errorf("token %+v, error %v, accounts %v", token, err, fake.accounts)
	}
	if form := fake.received()[0]; form.Get("audience") != "requested" || form.Get("scope") != "a" {
		t.Errorf("Google received %v", form)
	}
}

func TestGoogle_NamesTheReasonWithoutTheToken(t *testing.T) {
	redirect := func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}
	respond := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	cases := map[string]struct {
		respond http.HandlerFunc
		code    string // code of the *Error; "" = the service is unavailable
		text    string
	}{
		"refused": {respond(400, `{"error":"invalid_grant","error_description":"`+
			subject+` is stale"}`), "invalid_grant", "[redacted] is stale"},
		"forbidden": {respond(403,
			`{"error":{"code":403,"status":"PERMISSION_DENIED","message":"no"}}`),
			"invalid_grant", "PERMISSION_DENIED no"},
		"internal error": {respond(500, "oops"), "", "500"},
		"too many":       {respond(429, "{}"), "", "429"},
		"no token":       {respond(200, "{}"), "", "has none"},
		"no JSON":        {respond(200, subject), "", "not the expected JSON"},
		"redirect":       {redirect, "", "unexpected redirect"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			g, fake := startGoogle(t, "a", "")
			fake.set(c.respond)
			_, err := g.exchange(t.Context(), Request{SubjectToken: subject})
			known, ok := errorCode(err)
			if err == nil || ok != (c.code != "") || known != c.code ||
				!strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), subject) {
				t.Errorf("error %v, code %q", err, known)
			}
		})
	}
}

func TestGoogle_NeedsAnAudience(t *testing.T) {
	g, fake := startGoogle(t, "", "")
	_, err := g.exchange(t.Context(), Request{SubjectToken: subject})
	if code, _ := errorCode(err); code != InvalidTarget || len(fake.received()) > 0 {
		t.Errorf("error %v, Google received %v", err, fake.received())
	}
}
