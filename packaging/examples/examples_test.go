package examples

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// named answers with a name and the parts of the request that the tests check.
func named(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Backend", name)
		for _, header := range []string{
			"X-Forwarded-For", "X-Forwarded-Proto", "X-Request-Id", "X-Forwarded-Client-Cert",
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
	for _, name := range []string{"http_test.go", "tls_test.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		own = append(own, text...)
	}
	var router string
	for _, example := range All() {
		if !strings.Contains(string(own), `newSandbox(t, "`+example.Name+`")`) {
			t.Errorf("%s: no test starts it", example.Name)
		}
		install := "cp -r /usr/share/doc/outrider/examples/" + example.Name + "/* /etc/outrider/"
		mesh := example.Files[0]
		if mesh.Path != "mesh.d/"+example.Name+".yaml" || !strings.Contains(mesh.Text, install) {
			t.Errorf("%s: %s does not say %q", example.Name, mesh.Path, install)
		}
		for _, file := range example.Files {
			if file.Path != "conf.d/10-router.toml" {
				continue
			}
			if router == "" {
				router = file.Text
			}
			if file.Text != router {
				t.Errorf("%s: %s differs from that of the other examples", example.Name, file.Path)
			}
		}
		for _, file := range example.Files {
			for number, line := range strings.Split(file.Text, "\n") {
				if len(line) > 100 {
					t.Errorf("%s/%s:%d: longer than 100 columns", example.Name, file.Path, number+1)
				}
			}
		}
	}
	folders, err := filepath.Glob("*/mesh.d")
	if err != nil || len(folders) != len(All()) {
		t.Errorf("%d examples of %d folders are in groups (%v)", len(All()), len(folders), err)
	}
}
