package systemtest

import (
	"crypto/x509"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/machine"
	"outrider.org/outrider/scripts/parts"
)

// acmeConfig is the configuration of Pebble, an ACME server. It validates challenges on port 80, on
// which Envoy listens.
const acmeConfig = `{"pebble": {"listenAddress": "127.0.0.1:14000",
"certificate": "/opt/acme/tls.crt", "privateKey": "/opt/acme/tls.key",
"httpPort": 80, "tlsPort": 443, "keyAlgorithm": "ecdsa", "retryAfter": {"authz": 1, "order": 1},
"profiles": {"default": {"description": "90 days", "validityPeriod": 7776000}}}}`

// acmeServer returns a directory with Pebble, its configuration, its certificate and the root.
func acmeServer(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(),
		filepath.Join(parts.RepositoryRoot(), "scripts", "get-pebble")).Output()
	if err != nil {
		t.Fatalf("scripts/get-pebble: %v; run scripts/setup test", err)
	}
	program, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "pebble"))
	if err != nil {
		t.Fatal(err)
	}
	root := pkitest.NewAuthority(t, "root", nil)
	key := pkitest.NewKey(t)
	own := root.Sign(t, &x509.Certificate{DNSNames: []string{"localhost"},
		NotAfter: time.Now().Add(24 * time.Hour)}, key.Public())
	folder := t.TempDir()
	for name, content := range map[string][]byte{"pebble": program, "config.json": []byte(acmeConfig),
		"tls.crt": pkitest.PEM(own), "tls.key": pkitest.KeyPEM(t, key),
		"root.crt": pkitest.PEM(root.Certificate)} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// Commands in the comments of the example certbot. The test appends options for the local ACME
// server.
const (
	obtain = `certbot certonly --standalone --http-01-address 127.0.0.1 --http-01-port 8888 ` +
		`-d www.example.com --deploy-hook "sh /etc/outrider/hooks/certbot-deploy"`
	renew = `certbot renew --force-renewal`
)

// TestCertbot_ObtainsAndRenewsThroughTheProxy runs the commands of the example certbot with the
// real certbot.
func TestCertbot_ObtainsAndRenewsThroughTheProxy(t *testing.T) {
	t.Parallel()
	h := newHost(t, machine.Options{BindMounts: []string{acmeServer(t) + ":/opt/acme"}})
	example, err := os.ReadFile(filepath.Join(parts.RepositoryRoot(),
		"packaging/examples/certbot/mesh.d/certbot.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	instructions := regexp.MustCompile(`\s*\\\n#\s+`).ReplaceAllString(string(example), " ")
	for _, command := range []string{obtain, renew} {
		if !strings.Contains(instructions, command) {
			t.Errorf("the example does not say %q", command)
		}
	}
	h.RunScript(`cp -r /opt/packaging/examples/certbot/* /etc/outrider/ && rm /etc/outrider/mesh.d/web.yaml
		echo "127.0.0.1 localhost www.example.com" >/etc/hosts
		systemd-run --quiet --unit=app /opt/programs/backend -http 127.0.0.1:3000 -tcp 127.0.0.1:3001
		systemd-run --quiet --unit=acme -E PEBBLE_VA_NOSLEEP=1 -E PEBBLE_WFE_NONCEREJECT=0 \
			/opt/acme/pebble -config /opt/acme/config.json
		systemctl start outrider`)
	const https = `curl -sk -m 10 -o /dev/null -w '%{http_code}' https://www.example.com/`
	curl := func() string {
		out, _ := h.Run(t.Context(), "sh", "-c", https)
		return strings.TrimSpace(out)
	}
	serial := func() string {
		return h.RunScript(`openssl s_client -connect 127.0.0.1:443 -servername www.example.com </dev/null ` +
			`2>/dev/null | openssl x509 -noout -serial -issuer`)
	}
	h.Eventually(time.Minute, "the proxy is ready and the authority listens", func() bool {
		_, err := h.Run(t.Context(), "sh", "-c",
			"outrider wait && curl -sfk -o /dev/null https://localhost:14000/dir")
		return err == nil
	})
	const missing = "/etc/outrider/credentials/www.example.com/tls.crt does not exist"
	if out, err := h.Run(t.Context(), "outrider", "mesh", "check"); err == nil ||
		!strings.Contains(out, missing) {
		t.Errorf("mesh check without a certificate: %v: %s", err, out)
	}
	const here = ` -n --agree-tos --register-unsafely-without-email --server https://localhost:14000/dir`
	const trust = `REQUESTS_CA_BUNDLE=/opt/acme/root.crt `
	h.RunScript(trust + obtain + here)
	h.Eventually(time.Minute, "the certificate is presented", func() bool { return curl() == "200" })
	first := serial()
	if !strings.Contains(first, "Pebble") {
		t.Errorf("presented: %s", first)
	}
	if got := h.RunScript(`stat -c '%U %G %a %n' /etc/outrider/credentials/www.example.com/* ` +
		`/etc/letsencrypt/live /etc/letsencrypt/archive`); got != ""+
		"outrider root 400 /etc/outrider/credentials/www.example.com/tls.crt\n"+
		"outrider root 400 /etc/outrider/credentials/www.example.com/tls.key\n"+
		"root root 700 /etc/letsencrypt/live\nroot root 700 /etc/letsencrypt/archive" {
		t.Errorf("rights:\n%s", got)
	}

	// The deploy hook now also makes copies for Envoy. Requests are sent during the renewal.
	h.RunScript(`mkdir /etc/outrider/tls && touch /etc/outrider/tls/www.example.com.crt
		rm -f /run/end; systemd-run --quiet --unit=load sh -c 'while [ ! -e /run/end ]; do ` +
		strings.ReplaceAll(https, `'%{http_code}'`, `"%{http_code}\n"`) + ` || echo failed; done >/run/codes'`)
	h.RunScript(trust + renew + " --no-random-sleep-on-renew")
	h.Eventually(time.Minute, "the renewed certificate is presented", func() bool {
		return serial() != first
	})
	h.RunScript("touch /run/end; while systemctl -q is-active load; do sleep 0.1; done")
	codes := strings.Fields(h.RunScript("cat /run/codes"))
	for _, code := range codes {
		if code != "200" {
			t.Errorf("a request was answered %s", code)
		}
	}
	if len(codes) == 0 {
		t.Error("no requests during the renewal")
	}
	t.Logf("%d requests during the renewal", len(codes))
	if got := h.RunScript(`stat -c '%U %a' /etc/outrider/tls/*`); got !=
		"outrider-envoy 400\noutrider-envoy 400" {
		t.Errorf("rights of Envoy's copies: %s", got)
	}
	if log := h.Journal("-u", "outrider"); !strings.Contains(log, "certificate replaced") {
		t.Errorf("no replacement in the journal:\n%s", log)
	}
	if out := h.MustRun(t, "outrider", "certs"); !strings.Contains(out, "credential www.example.com") ||
		!strings.Contains(out, "/etc/outrider/mesh.d/certbot.yaml:20 Gateway default/certbot") {
		t.Errorf("certs:\n%s", out)
	}
	linkedToClosedFolder(h)
}

// linkedToClosedFolder replaces the copies by links to certbot's files, a common mistake: the
// agent's user may not enter certbot's folder. The commands name the cause and the fix.
func linkedToClosedFolder(h *Host) {
	h.t.Helper()
	const closed = "user outrider cannot read /etc/outrider/credentials/www.example.com/tls.crt: " +
		"it leads to /etc/letsencrypt/live/www.example.com/fullchain.pem, and the user may not enter " +
		"/etc/letsencrypt/live; replace the link by a copy, also after each change: install -o outrider " +
		"-m 400 /etc/letsencrypt/live/www.example.com/fullchain.pem " +
		"/etc/outrider/credentials/www.example.com/tls.crt (\"outrider example show certbot\""
	h.RunScript(`cd /etc/outrider/credentials/www.example.com
		ln -sf /etc/letsencrypt/live/www.example.com/fullchain.pem tls.crt
		ln -sf /etc/letsencrypt/live/www.example.com/privkey.pem tls.key`)
	for _, command := range []string{"outrider mesh check", "outrider certs",
		"outrider mesh check /etc/outrider/mesh.d"} {
		h.Eventually(time.Minute, command+" names the closed folder", func() bool {
			out, _ := h.Run(h.t.Context(), "sh", "-c", command+" 2>&1")
			return strings.Contains(out, closed)
		})
	}
	h.RunScript(`install -o outrider -m 400 /etc/letsencrypt/live/www.example.com/fullchain.pem \
		/etc/outrider/credentials/www.example.com/tls.crt
		install -o outrider -m 400 /etc/letsencrypt/live/www.example.com/privkey.pem \
		/etc/outrider/credentials/www.example.com/tls.key`)
	h.Eventually(time.Minute, "the cure is one", func() bool {
		_, err := h.Run(h.t.Context(), "sh", "-c", "outrider mesh check && ! outrider status | grep -q ' error '")
		return err == nil
	})
}
