package main_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// TestStatusHTML_InABrowser renders the status page in Chromium, in the sizes of a desktop and of a
// phone. The agent has two epochs, a certificate and an invalid mesh object.
func TestStatusHTML_InABrowser(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewTLSServer(http.NotFoundHandler())
	defer upstream.Close()
	r := rig.New(t, rig.Options{Race: true})
	r.WriteFile("roots.pem",
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
			Bytes: upstream.Certificate().Raw})))
	r.WriteFile("mesh.d/far.yaml", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: far}
spec:
  hosts: [far.test]
  resolution: STATIC
  ports: [{number: %d, name: p, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: far}
spec:
  host: far.test
  trafficPolicy: {tls: {mode: SIMPLE, caCertificates: %s, subjectAltNames: [example.com]}}
`, parts.FreePort(t), filepath.Join(r.Dir, "roots.pem")))
	r.StartReady()
	r.WriteFile("mesh.d/broken.yaml",
		"apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: x}\n"+
			"spec: {hosts: ['<script>document.title=1</script>']}\n")
	if reload := r.RunOutrider("reload"); reload.ExitCode != 0 {
		t.Fatalf("reload: %s", reload.Stderr)
	}

	var page string
	rig.Eventually(t, time.Minute, "the page names the broken file and the certificate",
		func() bool {
			page = r.RunOutrider("status", "--html").Stdout
			return strings.Contains(page, "broken.yaml:4") &&
				strings.Contains(page, "<td>example.com, *.example.com")
		})
	web := http.NewServeMux()
	web.HandleFunc("/page", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, page) })
	web.HandleFunc("/framed/{width}", func(w http.ResponseWriter, request *http.Request) {
		fmt.Fprintf(w, `<iframe src="/page" width="%s" height="900"></iframe><script>
onload = () => {
  const page = frames[0].document, root = page.documentElement
  document.body.dataset.result = [page.title, root.scrollWidth <= root.clientWidth,
    [...page.querySelectorAll(".epoch")].length, page.querySelectorAll("script").length,
    [...page.querySelectorAll(".bar")].every(bar => bar.getBoundingClientRect().width >= 3)].join(" | ")
}</script>`, request.PathValue("width"))
	})
	server := httptest.NewServer(web)
	defer server.Close()
	for _, width := range []string{"1200", "390"} {
		dom := browse(t, server.URL+"/framed/"+width)
		if want := `data-result="outrider: running | true | 2 | 0 | true"`; !strings.Contains(dom,
			want) {
			t.Errorf("%s pixels: the page has not %s (title, fits, epochs, scripts, bars):\n%s",
				width, want, dom)
		}
	}
}

// browse returns the DOM of a page as Chromium has rendered it.
func browse(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	chromium := exec.CommandContext(ctx, "chromium", "--headless", "--no-sandbox", "--disable-gpu",
		"--disable-quic",
		"--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--disable-sync",
		"--user-data-dir="+t.TempDir(), "--virtual-time-budget=5000", "--dump-dom", url)
	out, err := chromium.Output()
	if err != nil {
		t.Fatalf("chromium: %v", err)
	}
	return string(out)
}
