package status

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestHostsThatAreThisMachine(t *testing.T) {
	for _, c := range []struct {
		host string
		own  bool
	}{
		{"", true}, {"127.0.0.1:15000", true}, {"127.0.0.1", true}, {"[::1]:15000", true},
		{"[::1]", true}, {"10.1.2.3:15000", true}, {"localhost", true},
		{"LOCALHOST:15000", true}, {"localhost.:15000", true}, {"web-1", true},
		{"Web-1.example.com:15000", true}, {"web-1.example.com.", true},
		{"evil.example.com:15000", false}, {"localhost.evil.example.com", false},
		{"127.0.0.1.evil.example.com", false}, {"web-1.evil.example.com", false},
		{"web-1.example.com.evil.test", false}, {":15000", false}, {"2130706433", false},
	} {
		if got := isOwn(c.host, "web-1.example.com"); got != c.own {
			t.Errorf("%q is this machine: %v", c.host, got)
		}
	}
	if isOwn("evil.test", "") {
		t.Error("a machine without a name is every host")
	}
}

func TestAnotherSitesPageIsRefused(t *testing.T) {
	server := httptest.NewServer(
		ownHost(http.HandlerFunc(
			func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "OK") })))
	defer server.Close()
	for host, want := range map[string]int{"evil.example.com": http.StatusForbidden,
		"": http.StatusOK} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Host = host // "" sends the address of the URL
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("host %q: %d", host, response.StatusCode)
		}
	}
}
