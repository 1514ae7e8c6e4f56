package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// hostileID is the node ID of a proxy that tries to run a script on the page.
const hostileID = `sidecar~127.0.0.1~<script>document.title='pwned'</script>` +
	`<img src=x onerror=\"document.title='pwned'\">~shop.svc.cluster.local`

// TestPage_InABrowser opens the pages of a program with two real Envoys in Chromium. The name of
// one Envoy is a script, which does not run. Another site can neither read nor embed the pages.
func TestPage_InABrowser(t *testing.T) {
	t.Parallel()
	folder := parts.ShortDir(t)
	port, monitoring := parts.FreePort(t), parts.FreePort(t)
	meshes := filepath.Join(folder, "mesh")
	if err := os.Mkdir(meshes, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(meshes, "a.yaml"), fmt.Sprintf(service, "web", parts.FreePort(t), 1))
	write(t, filepath.Join(meshes, "broken.yaml"), "apiVersion: networking.istio.io/v1\n"+
		"kind: ServiceEntry\nmetadata: {name: x}\nspec: {hosts: ['<script>document.title=1</script>']}\n")
	file := filepath.Join(folder, "discoveryd.toml")
	write(t, file, fmt.Sprintf("[paths]\nstate_dir = \"state\"\n[listen]\nplaintext = "+
		"\"127.0.0.1:%d\"\nmonitoring = \"127.0.0.1:%d\"\n[[source]]\npaths = [\"mesh\"]\n", port,
		monitoring))
	start(t, file, monitoring)
	const ordinaryID = "sidecar~127.0.0.1~vm.shop~shop.svc.cluster.local"
	for name, id := range map[string]string{"ordinary": ordinaryID, "hostile": hostileID} {
		admin := filepath.Join(folder, name+".sock")
		parts.StartEnvoy(t, admin, fmt.Sprintf(strings.Replace(bootstrap, ordinaryID, id, 1), admin,
			port))
	}
	url := fmt.Sprintf("http://127.0.0.1:%d", monitoring)
	var shown struct {
		Counts struct{ Hosts map[string]int }
	}
	parts.EventuallyWithObservation(t, time.Minute, "both have accepted everything", func() (bool, string) {
		_, text := ask("GET", url+"/hosts.json", "", "")
		return json.Unmarshal([]byte(text), &shown) == nil && shown.Counts.Hosts["synced"] == 2, text
	})

	dom := browse(t, url+"/")
	for _, text := range []string{"<title>outrider-discoveryd</title>", "<td>web.test</td>",
		"127.0.0.1 1</div>", "2 synced", ">vm.shop <", "Envoy 1.", meshes + "/broken.yaml:4: ",
		"&lt;script&gt;document.title='pwned'", filepath.Join(meshes, "a.yaml") + ":1"} {
		if !strings.Contains(dom, text) {
			t.Errorf("the page has not %s:\n%s", text, dom)
		}
	}
	if strings.Contains(dom, "<script") || strings.Contains(dom, "<img") {
		t.Errorf("markup of others on the page:\n%s", dom)
	}
	if dom := browse(t, url+"/hosts?q=pwned"); !strings.Contains(dom, "1 of 2") {
		t.Errorf("the filter:\n%s", dom)
	}
	if dom := browse(t, fmt.Sprintf("http://evil.test:%d/hosts", monitoring),
		"--host-resolver-rules=MAP evil.test 127.0.0.1"); strings.Contains(dom, "vm.shop") ||
		!strings.Contains(dom, "web pages are refused") {
		t.Errorf("under a name that resolves to this host:\n%s", dom)
	}
	otherSite(t, url)
}

// otherSite checks that a page of another site can neither read nor embed the pages.
func otherSite(t *testing.T, url string) {
	t.Helper()
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `<body><iframe src="%[1]s/"></iframe><script>
const result = []
const attempts = [
  fetch("%[1]s/hosts.json").then(() => "read", () => "refused"),
  fetch("%[1]s/hosts.json", {mode: "no-cors"}).then(() => "loaded", () => "refused"),
  new Promise(done => {
    const style = document.createElement("link")
    Object.assign(style, {rel: "stylesheet", href: "%[1]s/style.css",
      onload: () => done("loaded"), onerror: () => done("refused")})
    document.head.append(style)
  })]
Promise.all(attempts).then(all => document.body.dataset.result = all.join(" "))
</script>`, url)
	}))
	defer evil.Close()
	dom := browse(t, evil.URL)
	// The server refuses requests of other sites. The no-cors request "loads" this refusal, but its
	// content is hidden from the script.
	if !strings.Contains(dom, `data-result="refused loaded refused"`) {
		t.Errorf("another site:\n%s", dom)
	}
}

// browse returns the DOM of a page in Chromium, after its scripts have run.
func browse(t *testing.T, url string, more ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	arguments := append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
		"--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--disable-sync", "--user-data-dir=" + t.TempDir(), "--virtual-time-budget=5000",
		"--dump-dom"}, more...)
	out, err := exec.CommandContext(ctx, "chromium", append(arguments, url)...).Output()
	if err != nil {
		t.Fatalf("chromium: %v", err)
	}
	return string(out)
}
