package systemtest

import (
	"strings"
	"testing"
	"time"
)

// TestProxyless_ApplicationHasWhatGRPCNeeds follows the README's instructions for proxyless gRPC:
// the agent starts no Envoy, and an application of another user can read its certificate and the
// gRPC bootstrap and connect to the xDS socket, but nothing more.
func TestProxyless_ApplicationHasWhatGRPCNeeds(t *testing.T) {
	t.Parallel()
	c := newCertified(t)
	c.startIstiod()
	c.RunScript("useradd --system --groups outrider-xds shop")
	c.RunScript("useradd --system --groups outrider-envoy before") // as earlier releases required it
	c.WriteText("/etc/tmpfiles.d/shop.conf", "d /run/outrider/certificates 2750 outrider shop\n")
	c.RunScript("systemd-tmpfiles --create shop.conf")
	c.WriteText("/etc/outrider/conf.d/70-grpc.toml", `[envoy]
enabled = false
[discovery]
address = "localhost:15112"
root_ca_file = "/etc/outrider/root.pem"
[identity]
output_dir = "/run/outrider/certificates"
[xds]
grpc_bootstrap_file = "/run/outrider/grpc-bootstrap.json"
`)
	c.MustRun(t, "outrider", "config", "check")
	c.MustRun(t, "systemctl", "start", "outrider.service")
	c.MustRun(t, "outrider", "wait", "--timeout", "30s")
	if status := c.Property("outrider.service", "StatusText"); !strings.HasPrefix(status,
		"serves without Envoy") {
		t.Errorf("status: %s", status)
	}
	if running := c.ProcessIDs("envoy"); len(running) > 0 {
		t.Errorf("Envoys: %v", running)
	}
	c.Eventually(time.Minute, "the application can read its certificate", func() bool {
		_, err := c.Run(t.Context(), "runuser", "-u", "shop", "--", "sh", "-ec",
			"grep -q BEGIN /run/outrider/certificates/key.pem; "+
				"grep -q GENERATOR /run/outrider/grpc-bootstrap.json; test -w /run/outrider/envoy/xds.sock")
		return err == nil
	})
	for user, mayConnect := range map[string]bool{"shop": true, "before": true, "nobody": false} {
		if out, err := c.Run(t.Context(), "runuser", "-u", user, "--", "curl", "-s", "--http2-prior-knowledge",
			"--unix-socket", "/run/outrider/envoy/xds.sock", "http://x/"); mayConnect != (err == nil) {
			t.Errorf("%s connects: %v %s", user, err, out)
		}
	}
	c.RunScript("install -m 0640 -o outrider -g outrider-envoy /dev/null /run/outrider/envoy/envoy-rev9.json")
	for what, script := range map[string]string{
		"list Envoy's folder": "ls /run/outrider/envoy", "read a bootstrap": "cat /run/outrider/envoy/envoy-rev9.json",
		"write there": "touch /run/outrider/envoy/x", "occupy a name of Envoy's": "touch /run/outrider-envoy/lock",
		"ask for secrets": "curl -s --http2-prior-knowledge --unix-socket /run/outrider/envoy/sds.sock http://x/"} {
		if out, err := c.Run(t.Context(), "runuser", "-u", "shop", "--", "sh", "-c", script); err == nil {
			t.Errorf("an application may %s: %s", what, out)
		}
	}
	if _, err := c.Run(t.Context(), "runuser", "-u", "nobody", "--", "cat",
		"/run/outrider/certificates/key.pem"); err == nil {
		t.Error("everyone can read the key")
	}
	c.WriteText("/etc/outrider/conf.d/80-elsewhere.toml",
		"[xds]\ngrpc_bootstrap_file = \"/srv/grpc.json\"\n")
	if _, err := c.Run(t.Context(), "systemctl", "restart", "outrider.service"); err == nil {
		t.Error("a file that the unit may not write is accepted")
	}
	if log := c.Journal("-o", "cat", "-u", "outrider.service"); !strings.Contains(log,
		"80-elsewhere.toml:2:1: xds.grpc_bootstrap_file: the agent may not write to /srv") {
		t.Errorf("not explained:\n%s", log)
	}
}
