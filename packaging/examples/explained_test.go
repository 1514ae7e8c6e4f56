package examples

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/rig"
)

// explained has, for each example of the first group (edge proxies), the arguments of outrider mesh
// explain and an expected part of its output.
var explained = map[string]struct {
	request []string
	want    string
}{
	"hello": {[]string{"http://127.0.0.1:8080/"}, "=> answered with status 200"},
	"reverse-proxy": {[]string{"https://www.example.com/api/x"},
		"=> forwarded: outbound|80||api.internal"},
	"certbot": {[]string{"http://www.example.com/.well-known/acme-challenge/x"},
		"=> forwarded: outbound|80||certbot.internal"},
	"two-hosts": {[]string{"https://blog.example.com/"},
		"=> forwarded: outbound|80||blog.internal"},
	"canary": {[]string{"http://127.0.0.1:8080/", "-H", "x-canary: always"},
		"=> forwarded: outbound|80|canary|shop.internal"},
	"retries":      {[]string{"http://127.0.0.1:8081/"}, "retries up to 2 times"},
	"internal-api": {[]string{"https://api.internal:8443/v2"}, "=> answered with status 404"},
	"sni":          {[]string{"https://git.example.com/"}, "=> forwarded: outbound|443||git.internal"},
	"east-west": {[]string{"https://outbound_.9080_._.orders.internal:15443/", "--from",
		"spiffe://cluster.local/ns/default/sa/shop"},
		"=> forwarded: outbound_.9080_._.orders.internal"},
	"outbound-proxy": {[]string{"http://127.0.0.1:3128/", "-H", "host: api.example.com"},
		"=> forwarded: outbound|443||api.example.com"},
}

// TestEdges_AreExplained checks, without an agent, that mesh explain names lines of the example's
// own file for each edge proxy. TestExtras checks the examples that extend them.
func TestEdges_AreExplained(t *testing.T) {
	outrider := rig.Build(t, false).Path("outrider")
	for _, example := range Groups[0].Examples() {
		dir := t.TempDir()
		mesh := example.Files[0]
		file := filepath.Join(dir, filepath.Base(mesh.Path))
		if err := os.WriteFile(file, []byte(mesh.Text), 0o600); err != nil {
			t.Fatal(err)
		}
		x := explained[example.Name]
		command := exec.CommandContext(t.Context(), outrider, append([]string{"mesh", "explain",
			"--files", dir, "--type", "router"}, x.request...)...)
		// if Envoy itself would respond, mesh explain succeeds with an exit status other than 0
		out, _ := command.CombinedOutput()
		if !strings.Contains(string(out), x.want) ||
			!strings.Contains(string(out), "from "+file+":") {
			t.Errorf("%s: not %q:\n%s", example.Name, x.want, out)
		}
	}
}
