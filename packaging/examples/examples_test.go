package examples

import (
	"net/http"
	"os"
	"strings"
	"testing"
)

// named answers with a name and the parts of the request that the tests check.
func named(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Backend", name)
		for _, header := range []string{
			"X-Forwarded-For", "X-Forwarded-Proto", "X-Request-Id", "X-Forwarded-Client-Cert",
			"X-Envoy-External-Address", "X-Envoy-Attempt-Count", "X-Envoy-Expected-Rq-Timeout-Ms",
			"X-User", "X-Jwt-Payload",
		} {
			w.Header().Set("Saw-"+header, r.Header.Get(header))
		}
		w.Header().Set("Saw-Host", r.Host)
	}
}

func (a answer) from() string { return a.header.Get("X-Backend") }

// Every example has a test and a directory that mirrors /etc/outrider, and documents its
// installation.
func TestExamples_AreAllDocumentedAndTested(t *testing.T) {
	var own []byte
	for _, name := range []string{"http_test.go", "tls_test.go", "extra_test.go",
		"extras_test.go", "../../scripts/machine/systemtest/examples_test.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		own = append(own, text...)
	}
	router := load("canary").Files[1].Text
	for _, example := range AllExamples() {
		if !strings.Contains(string(own), `"`+example.Name+`"`) {
			t.Errorf("%s: no test starts it", example.Name)
		}
		install := "cp -r /usr/share/doc/outrider/examples/" + example.Name + "/* /etc/outrider/"
		if !strings.Contains(example.Files[0].Text, install) {
			t.Errorf("%s: %s does not say %q", example.Name, example.Files[0].Path, install)
		}
		for _, file := range example.Files {
			if file.Path == "conf.d/10-router.toml" && file.Text != router {
				t.Errorf("%s: %s differs from that of the other examples", example.Name, file.Path)
			}
			for number, line := range strings.Split(file.Text, "\n") {
				if len(line) > 100 && !strings.Contains(line, `"@type"`) {
					t.Errorf("%s/%s:%d: longer than 100 columns", example.Name, file.Path, number+1)
				}
			}
		}
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if _, err := FindExample(entry.Name()); entry.IsDir() && err != nil {
			t.Errorf("the folder %s is in no group", entry.Name())
		}
	}
}
