package systemtest

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

const installDiscoveryd = `set -eu
install -D -m 0755 -t /usr/sbin /opt/discoveryd/outrider-discoveryd
install -D -m 0644 -t /usr/lib/systemd/system /opt/units/outrider-discoveryd.service
systemd-sysusers outrider-discoveryd.conf
systemctl daemon-reload
outrider-discoveryd ca init /etc/outrider/ca localhost >/dev/null
chown -R outrider-discoveryd /etc/outrider/ca
openssl genpkey -algorithm ed25519 -out /srv/join.key
openssl pkey -in /srv/join.key -pubout -out /etc/outrider/join.pub
chmod 644 /etc/outrider/join.pub
outrider-discoveryd token --service-account shop/web --key /srv/join.key >/srv/web.token
cat >/etc/outrider/discoveryd.toml <<TOML
[listen]
tls = "localhost:15012"
[tls]
cert_file = "/etc/outrider/ca/server.pem"
key_file = "/etc/outrider/ca/server.key"
[auth]
join_key_file = "/etc/outrider/join.pub"
[ca]
enabled = true
cert_file = "/etc/outrider/ca/ca.pem"
key_file = "/etc/outrider/ca/ca.key"
root_file = "/etc/outrider/ca/root.pem"
[log]
level = "debug"
TOML
chmod 640 /etc/outrider/discoveryd.toml
chgrp outrider-discoveryd /etc/outrider/discoveryd.toml
systemctl start outrider-discoveryd`

// keyForms returns three forms of a private key that can be searched for: a line of its PEM text, a
// regular expression (grep -P) for bytes in its middle, and these bytes as hexadecimal digits.
func keyForms(t *testing.T, text string) (line, expression, digits string) {
	t.Helper()
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		t.Fatalf("no key: %.30s", text)
	}
	var secret []byte
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		key, err = x509.ParseECPrivateKey(block.Bytes)
	}
	switch private := key.(type) {
	case *ecdsa.PrivateKey:
		secret, err = private.Bytes()
	case ed25519.PrivateKey:
		secret = private.Seed()
	}
	if err != nil || len(secret) < 32 {
		t.Fatalf("a key of %T: %v", key, err)
	}
	for _, b := range secret[8:24] {
		expression += fmt.Sprintf(`\x%02x`, b)
		digits += fmt.Sprintf("%02x", b)
	}
	encoded := base64.StdEncoding.EncodeToString(block.Bytes)
	return encoded[:min(64, len(encoded))], expression, digits
}

// The private keys of the CA, of the server and of join tokens are only in the operator's files,
// and a join token is only in its own file. They are not elsewhere on the disk, in the journal, on
// the web pages, in a core dump, or in /proc as another user reads it.
func TestSecrecy_KeysOfDiscoverydAreNowhere(t *testing.T) {
	t.Parallel()
	h := NewHost(t, filepath.Dir(parts.BuildProgram(t, "outrider-discoveryd"))+":/opt/discoveryd")
	h.RunScript(installDiscoveryd)
	// The agent authenticates with the token to obtain its first certificate, and with that
	// certificate for xDS.
	h.RunScript("outrider join localhost --token /srv/web.token --ca /etc/outrider/ca/root.pem")
	h.MustServe()
	h.Eventually(time.Minute, "the page knows the host, its agent and the end of its certificate",
		func() bool {
			page := h.MustRun(t, "bash", "-c", `exec 3<>/dev/tcp/127.0.0.1/15014
printf 'GET /hosts.json HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3; cat <&3`)
			return strings.Contains(page, `"agent":"outriderd/`) &&
				strings.Contains(page, `"certificateEnds":"2`) &&
				strings.Contains(page, `"identity":"spiffe://cluster.local/ns/shop/sa/web"`)
		})
	pid := h.MainPID("outrider-discoveryd.service")
	for _, user := range []string{"outrider-discoveryd", "nobody", "outrider"} {
		if _, err := h.Run(t.Context(), "runuser", "-u", user, "--", "sh", "-c",
			fmt.Sprintf("exec 3</proc/%d/mem", pid)); err == nil {
			t.Errorf("%s reads the memory", user)
		}
	}
	for file, want := range map[string]string{"limits": "Max core file size        0 ",
		"coredump_filter": "00000000"} {
		if text := h.MustRun(t, "cat", fmt.Sprintf("/proc/%d/%s", pid, file)); !strings.Contains(text,
			want) {
			t.Errorf("%s: %s", file, text)
		}
	}
	// Collect what another user can read on the pages and in /proc.
	h.RunScript(`for page in / /hosts /services /problems /status.json /hosts.json /metrics /ready /debug/list \
	/debug/config /debug/connections /debug/syncz /debug/pushes /debug/registry; do
	runuser -u nobody -- bash -c "exec 3<>/dev/tcp/127.0.0.1/15014
		printf 'GET $page HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3; cat <&3; echo" >>/run/pages.log
done
runuser -u nobody -- sh -c 'cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null' >/run/proc.log || true`)
	if pages := h.RunScript("grep -ac '^HTTP/1.0 200 OK' /run/pages.log"); pages != "14" {
		t.Errorf("%s pages of 14 were served", pages)
	}
	h.MustRun(t, "kill", "-s", "ABRT", fmt.Sprint(pid))
	h.Eventually(time.Minute, "another process serves", func() bool {
		next := h.MainPID("outrider-discoveryd.service")
		return next != pid && next != 0 &&
			h.RunScript("systemctl is-active outrider-discoveryd || true") == "active"
	})
	h.RunScript("journalctl --sync; journalctl -a >/run/journal.log")
	if issued := h.RunScript("grep -c 'issued certificate' /run/journal.log || true"); issued == "0" {
		t.Error("no certificate was issued")
	}
	if cores := h.RunScript("find / -maxdepth 1 -name 'core*'; find /var /run /tmp -name 'core*' " +
		"-type f -newer /etc/outrider/join.pub; ls /var/lib/systemd/coredump 2>/dev/null || true"); cores !=
		"" {
		t.Errorf("core files: %s", cores)
	}

	const places = "/etc /var /run /tmp /dev/shm /srv"
	operators := map[string]string{"/etc/outrider/ca/ca.key": "", "/etc/outrider/ca/root.key": "",
		"/etc/outrider/ca/server.key": "", "/srv/join.key": ""}
	for file := range operators {
		if h.RunScript("test -e "+file+" && echo there || true") == "" {
			continue // `ca init` may have deleted the root's key
		}
		line, expression, digits := keyForms(t, h.MustRun(t, "cat", file)+"\n")
		found := h.RunScript(fmt.Sprintf("export LC_ALL=C; { grep -rlaF -D skip -e '%s' -e %s %s; "+
			"grep -rlaP -D skip '%s' %s; } 2>/dev/null | sort -u || true", line, digits, places,
			expression, places))
		if found != file {
			t.Errorf("the key of %s is in %q", file, found)
		}
	}
	token := h.MustRun(t, "cat", "/srv/web.token")
	signature := token[strings.LastIndexByte(token, '.')+1:]
	if found := h.RunScript(fmt.Sprintf("grep -rlaF -D skip -e '%s' %s 2>/dev/null || true",
		strings.TrimSpace(signature), places)); found != "/srv/web.token" {
		t.Errorf("the join token is in %q", found)
	}
}
