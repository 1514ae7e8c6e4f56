package systemtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/config"
)

// Secrets of TestCanary_FoundNowhere, as a text and as a number. Each concealed key gets its own
// secret, which ends with the index of the key.
const (
	canaryText   = "canary-7f3a-"
	canaryNumber = "904173580266"
)

// canaryValues are TOML values with a placeholder for the secret. Each concealed key accepts at
// least one.
var canaryValues = []string{
	`"http://user:SECRET@127.0.0.1:1/x?SECRET#SECRET"`, `{ name = "SECRET" }`, `"SECRET"`,
	`["SECRET"]`,
}

// brokenValues are TOML values with a placeholder that no concealed key accepts.
var brokenValues = []string{
	`SECRET`, `"SECRET`, `SECRET"`, `'SECRET`, `"SECRET" SECRET`, `"\uSECRET"`, `"""SECRET`,
	`NUMBER`, `NUMBERx`, `NUMBERNUMBERNUMBERNUMBER`, `NUMBER.`, `2026-NUMBER`,
	`[["SECRET"], NUMBER]`, `[SECRET]`, `{ name = SECRET }`, `{ name = "SECRET"`,
	`[{ a = "SECRET" }]`,
	`"SECRET\u0000"`, "\"SECRET\"\nKEY = \"SECRET\"",
}

// TestCanary_FoundNowhere writes secrets to all concealed keys, in valid and in invalid values. No
// output of the agent contains them.
func TestCanary_FoundNowhere(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.RunScript("getent group nobody >/dev/null || groupadd nobody")
	h.WriteText("/opt/patterns", canaryText+"\n"+canaryNumber+"\n")
	plant := func(name, text string) {
		h.WriteText("/etc/outrider/conf.d/"+name, text)
		h.RunScript("chgrp outrider /etc/outrider/conf.d/" + name +
			"; chmod 0640 /etc/outrider/conf.d/" + name)
	}
	// files for the keys of [health]: only one probe may be configured at a time
	var probes []string
	for i, key := range config.SecretKeys() {
		text := validCanary(t, i, key)
		if strings.HasPrefix(key, "health.") {
			probes = append(probes, text)
			continue
		}
		plant(fmt.Sprintf("%d.toml", i), text)
	}
	plant("probe.toml", probes[0])
	h.MustRun(t, "systemd-run", "--quiet", "--unit=monitor",
		"--property=StandardOutput=file:/opt/bus.log",
		"busctl", "monitor", busName)
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.OnBus(busName)
	h.MustServe()
	h.collect("valid")
	for n, probe := range probes[1:] {
		plant("probe.toml", probe)
		h.MustRun(t, "outrider", "reload")
		h.collect(fmt.Sprintf("probe-%d", n))
	}

	h.RunScript("rm /etc/outrider/conf.d/*")
	h.MustRun(t, "outrider", "reload")
	for n, value := range brokenValues {
		for i, key := range config.SecretKeys() {
			plant(fmt.Sprintf("%d.toml", i), canaryFile(i, key, value))
		}
		if out, err := h.Run(t.Context(), "outrider", "reload"); err == nil {
			t.Errorf("%s is accepted: %s", value, out)
		}
		h.collect(fmt.Sprintf("broken-%d", n))
	}
	if out, err := h.Run(t.Context(), "systemctl", "restart", "outrider.service"); err == nil {
		t.Errorf("a broken configuration starts: %s", out)
	}
	h.collect("failed")
	h.MustRun(t, "journalctl", "--sync")
	h.RunScript("journalctl --no-pager -o export >/opt/out/journal; cp /opt/bus.log /opt/out/")

	// The collected output must be complete, or the search would prove nothing.
	for _, want := range []string{"bus.log", "valid/server_info", "valid/config_dump",
		"valid/report"} {
		h.RunScript("[ $(wc -c </opt/out/" + want + ") -gt 500 ]")
	}
	h.RunScript("grep -q 'is not TOML' /opt/out/broken-0/reload")
	if found := h.RunScript(
		"grep -a -r -F -f /opt/patterns /opt/out | cut -c1-300 || true"); found != "" {
		t.Errorf("found:\n%s", found)
	}
}

// validCanary returns a valid configuration file in which a key contains its secret.
func validCanary(t *testing.T, i int, key string) string {
	t.Helper()
	for _, value := range canaryValues {
		path := filepath.Join(t.TempDir(), "outrider.toml")
		text := canaryFile(i, key, value)
		if strings.HasSuffix(key, ".headers") { // headers need an HTTP probe
			text += "http = \"http://127.0.0.1:1/\"\n"
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := config.Load(config.Options{Path: path, CheckOnly: true}); err == nil {
			return text
		}
	}
	t.Fatalf("%s accepts none of %q", key, canaryValues)
	return ""
}

// canaryFile returns a configuration file that sets a key to a value, in which it replaces the
// placeholders by the secrets of the key with index i.
func canaryFile(i int, key, value string) string {
	at := strings.LastIndexByte(key, '.')
	replacer := strings.NewReplacer("SECRET", fmt.Sprint(canaryText, i), "KEY", key[at+1:],
		"NUMBER", fmt.Sprint(canaryNumber, i))
	return "[" + key[:at] + "]\n" + key[at+1:] + " = " + replacer.Replace(value) + "\n"
}

// collect writes everything that the agent currently shows to files in /opt/out/NAME.
func (h *Host) collect(name string) {
	h.t.Helper()
	const script = `mkdir -p /opt/out/$1; cd /opt/out/$1
everyone() { setpriv --reuid=nobody --regid=nobody --init-groups "$@"; }
everyone outrider status >status 2>&1
everyone outrider --json status >status.json 2>&1
everyone curl -s -m 10 --unix-socket /run/outrider/outrider.sock http://agent/v1/events >events 2>&1
everyone outrider config show >show.nobody 2>&1
everyone outrider config diff >diff.nobody 2>&1
outrider config show >show 2>&1
outrider config diff >diff 2>&1
outrider --json config diff >diff.json 2>&1
outrider config check >check 2>&1
outrider reload >reload 2>&1
everyone outriderd --check >check.nobody 2>&1
outriderd --check >check.agent 2>&1
for path in server_info config_dump config_dump?include_eds init_dump clusters listeners stats runtime; do
	everyone curl -s -m 10 "http://127.0.0.1:15000/$path" >"$path" 2>&1
done
everyone curl -s -m 10 http://127.0.0.1:15020/stats/prometheus >metrics 2>&1
everyone curl -s -m 10 http://127.0.0.1:15020/healthz/ready >ready 2>&1
everyone curl -s -m 10 http://127.0.0.1:15020/app-health/NAME >probe 2>&1
everyone busctl introspect org.outrider.Agent1 /org/outrider/Agent1 --full >bus 2>&1
everyone busctl call org.outrider.Agent1 /org/outrider/Agent1 org.freedesktop.DBus.ObjectManager GetManagedObjects >objects 2>&1
systemctl show outrider.service outrider-envoy.service >show.units 2>&1
systemctl status --no-pager -l outrider.service >status.units 2>&1
outrider bug-report --output - 2>report.summary | tar -xzO >report
cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ >processes 2>/dev/null
find /run/outrider /run/outrider-envoy -type f -perm -o+r -exec cat {} + >run 2>&1
true`
	h.MustRun(h.t, "sh", "-c", script, "sh", name)
	if !strings.HasPrefix(name, "broken") {
		return
	}
	h.Eventually(time.Minute, "the bus has what is wrong", func() bool {
		out, err := h.Run(h.t.Context(), "busctl", "get-property", busName, busObject, busManager,
			"LastError")
		return err == nil && len(out) > len(`s ""`)
	})
}
