package systemtest

import (
	"strings"
	"time"
)

// policies has one policy of each security kind. Each policy denies one of the requests of
// askClosed.
var policies = map[string]string{
	"access": `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: access, namespace: default}
spec: {selector: {matchLabels: {app: web}}, action: DENY, rules: [{to: [{operation: {paths: [/closed]}}]}]}
`,
	"tokens": `apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: default}
spec: {selector: {matchLabels: {app: web}}, jwtRules: [{issuer: a, jwks: '{"keys":[{"kty":"oct","kid":"k","k":"AAAA"}]}'}]}
`,
	"peers": `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: peers, namespace: default}
spec: {selector: {matchLabels: {app: web}}, portLevelMtls: {8081: {mode: STRICT}}}
`,
}

const ingress = `apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: default}
spec:
  ingress:
  - {port: {number: 8080, protocol: HTTP, name: web}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:9000"}
  - {port: {number: 8081, protocol: HTTP, name: strict}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:9000"}
`

// askClosed is a script that installs two units to be started before the agent: a backend, and one
// that sends requests continuously. It writes a line per round to /run/asked, with the status codes
// of a denied request, one with an invalid token, one without mutual TLS, and a permitted one (000:
// no response).
const askClosed = `cat >/usr/local/bin/ask-closed <<'END'
#!/bin/sh
ask() { curl -s -m 5 -o /dev/null -w '%{http_code} ' "$@"; }
while :; do
	echo "$(ask http://127.0.0.1:8080/closed)$(ask -H 'Authorization: Bearer x.y.z' http://127.0.0.1:8080/)$(
		ask http://127.0.0.1:8081/)$(ask http://127.0.0.1:8080/)" >>/run/asked
done
END
chmod +x /usr/local/bin/ask-closed
for unit in "backend-early /opt/programs/backend -http 127.0.0.1:9000 -tcp 127.0.0.1:9001" \
	"ask-closed /usr/local/bin/ask-closed"; do
	cat >/etc/systemd/system/${unit%% *}.service <<END
[Unit]
Before=outrider.service
[Service]
Type=exec
ExecStart=${unit#* }
[Install]
WantedBy=multi-user.target
END
done
systemctl daemon-reload
systemctl stop backend
systemctl enable --now backend-early
systemctl enable ask-closed`

// staysClosed breaks one policy of each security kind, and reboots. From the first request after
// the boot, Envoy denies what it denied before.
func (h *Host) staysClosed() {
	h.t.Helper()
	h.WriteText("/etc/outrider/conf.d/60-labels.toml", "[node]\nlabels = {app = \"web\"}\n")
	h.WriteText("/etc/outrider/mesh.d/ingress.yaml", ingress)
	for name, text := range policies {
		h.WriteText("/etc/outrider/mesh.d/"+name+".yaml", text)
	}
	h.RunScript(askClosed)
	h.MustRun(h.t, "systemctl", "start", "outrider.service")
	const want = "403 401 000 200"
	closed := func(when string) {
		h.t.Helper()
		var rounds []string
		h.Eventually(time.Minute, when+": requests are answered with "+want, func() bool {
			rounds = strings.Split(h.RunScript("cat /run/asked 2>/dev/null || true"), "\n")
			return len(rounds) > 2 && strings.TrimSpace(rounds[len(rounds)-2]) == want
		})
		for _, round := range rounds[:len(rounds)-1] {
			codes := strings.Fields(round)
			for i, code := range strings.Fields(want)[:min(3, len(codes))] {
				if codes[i] != code && codes[i] != "000" {
					h.t.Errorf("%s: answers %s, want %s", when, round, want)
				}
			}
		}
	}
	h.MustRun(h.t, "systemctl", "start", "ask-closed")
	closed("before the edit")
	for name, text := range policies {
		h.WriteText("/etc/outrider/mesh.d/"+name+".yaml", strings.Replace(text, "spec: {",
			"spec: {unknown: true, ", 1))
	}
	reported := func() bool {
		check := h.RunScript("outrider mesh check 2>&1 || true")
		for name := range policies {
			if !strings.Contains(check, "/etc/outrider/mesh.d/"+name+".yaml:") {
				return false
			}
		}
		return true
	}
	h.Eventually(time.Minute, "the broken policies are reported", reported)
	h.RunScript("rm /run/asked")
	closed("after the edit")
	if err := h.Reboot(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	closed("after the reboot")
	h.Eventually(time.Minute, "the next agent reports them", reported)
}
