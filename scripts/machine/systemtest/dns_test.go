package systemtest

import (
	"strings"
	"testing"
	"time"
)

const shop = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop}
spec:
  hosts: [shop.test]
  addresses: [240.240.0.1]
  resolution: STATIC
  ports: [{number: 9080, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1}]
`

// Programs on the host resolve hosts of the mesh with libc, although the name server in resolv.conf
// does not respond.
func TestDNS_IsCaptured(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.RunScript(outside)
	h.RunScript("umount /etc/resolv.conf 2>/dev/null; rm -f /etc/resolv.conf")
	h.WriteText("/etc/resolv.conf", "nameserver 198.51.100.9\noptions timeout:1 attempts:1\n")
	h.WriteText("/etc/outrider/conf.d/dns.toml", interception+"dns = true\n"+
		"[dns]\nlisten = \"127.0.0.1:15053\"\n")
	h.WriteText("/etc/outrider/mesh.d/shop.yaml", shop)
	resolves := func() bool {
		return strings.HasPrefix(h.RunScript("getent ahostsv4 shop.test || true"), "240.240.0.1 ")
	}
	h.RunScript("systemctl start outrider")
	h.Eventually(time.Minute, "the name resolves", resolves)
	h.captureIs("on")
	shown := h.RunScript("outrider capture show; outrider capture explain 198.51.100.9:53 --udp --user " +
		"nobody; outrider capture explain 198.51.100.9:53 --udp --user outrider")
	for _, want := range []string{"\nDNS is on, for queries to 198.51.100.9\n", "\ncapture.dns ",
		"table inet outrider-dns {", "captured: goes to the DNS proxy at port 15053 (capture.dns)",
		"not captured (user of the agent)"} {
		if !strings.Contains(shown, want) {
			t.Errorf("no %q in: %s", want, shown)
		}
	}
	for _, change := range []string{"systemctl restart outrider.service",
		"systemctl kill -s KILL outrider.service"} {
		pid := h.MainPID("outrider")
		load := startDNSLoad(t, h, "shop.test.", "240.240.0.1", "198.51.100.9:53", "127.0.0.1:15053")
		load.more(100)
		h.RunScript(change)
		h.Eventually(time.Minute, "another agent is ready", func() bool {
			return h.MainPID("outrider") != pid && h.Property("outrider", "ActiveState") == "active"
		})
		load.more(200)
		load.stop(change)
	}
	helper := h.MainPID("outrider-capture")
	h.RunScript("systemctl kill -s KILL outrider-capture.service")
	h.Eventually(time.Minute, "the name resolves after a kill of the helper", func() bool {
		pid := h.MainPID("outrider-capture")
		return pid != 0 && pid != helper && resolves()
	})
	h.RunScript("systemctl stop outrider")
	if left := h.RunScript("nft list ruleset"); left != "" || resolves() {
		t.Errorf("after the stop: %s", left)
	}
}
