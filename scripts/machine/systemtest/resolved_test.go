package systemtest

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"outrider.org/outrider/scripts/parts"
)

// installResolved is a script that installs and starts systemd-resolved, with upstreamDNS as its
// upstream.
const installResolved = `set -eu
ip link add near type veth peer name far
ip addr add 198.51.100.1/24 dev near # resolved needs a network for its upstream
ip link set near up
ip link set far up
cp -a /opt/resolved/. /
mkdir -p /etc/systemd/resolved.conf.d
printf '[Resolve]\nDNS=127.0.0.9\n' >/etc/systemd/resolved.conf.d/test.conf
umount /etc/resolv.conf 2>/dev/null || true
ln -sf ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf
ln -sf /usr/lib/systemd/system/systemd-resolved.service /etc/systemd/system/dbus-org.freedesktop.resolve1.service
rm -f /etc/systemd/system/systemd-resolved.service
systemd-sysusers systemd-resolve.conf
systemctl daemon-reload
systemctl reload dbus.service
systemctl start systemd-resolved`

// upstreamDNS is a DNS server in the machine, on 127.0.0.9, that resolves every name to 192.0.2.9.
type upstreamDNS struct {
	mu      sync.Mutex
	queries map[string]int // number of queries by name in lower case
}

func (u *upstreamDNS) count(name string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.queries[name]
}

func startUpstreamDNS(t *testing.T, h *Host) *upstreamDNS {
	t.Helper()
	var packets net.PacketConn
	var err error
	parts.InNamespace(t, fmt.Sprintf("/proc/%d/ns/net", h.Leader()), func() {
		packets, err = net.ListenPacket("udp", "127.0.0.9:53")
	})
	if err != nil {
		t.Fatal(err)
	}
	u := &upstreamDNS{queries: map[string]int{}}
	server := &dns.Server{PacketConn: packets, Handler: dns.HandlerFunc(
		func(w dns.ResponseWriter, query *dns.Msg) {
			q := query.Question[0]
			u.mu.Lock()
			u.queries[strings.ToLower(q.Name)]++
			u.mu.Unlock()
			reply := new(dns.Msg).SetReply(query)
			if q.Qtype == dns.TypeA {
				rr, err := dns.NewRR(q.Name + " 0 A 192.0.2.9")
				if err != nil {
					t.Error(err)
				}
				reply.Answer = append(reply.Answer, rr)
			}
			_ = w.WriteMsg(reply)
		})}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { _ = server.Shutdown() })
	return u
}

const routed = "[dns]\nlisten = \"127.0.0.1:%d\"\nresolved = true\n"

// While an agent runs, systemd-resolved sends queries for names of the mesh to it. When the agent
// ends, for whatever reason, these names are resolved by the upstream server again.
func TestResolved_RoutesNames(t *testing.T) {
	t.Parallel()
	h := NewHost(t, packages(t, "systemd-resolved")+":/opt/resolved")
	h.RunScript(installResolved)
	upstream := startUpstreamDNS(t, h)
	before := h.RunScript("readlink /etc/resolv.conf; cat /etc/resolv.conf")
	h.WriteText("/etc/outrider/conf.d/dns.toml", fmt.Sprintf(routed, 15053))
	h.WriteText("/etc/outrider/mesh.d/shop.yaml", shop)
	h.WriteText("/run/systemd/system/outrider.service.d/once.conf", "[Service]\nRestart=no\n")
	h.Instance("web", 1)
	h.WriteText("/etc/outrider/web.mesh.d/shop.yaml", strings.ReplaceAll(strings.ReplaceAll(shop,
		"shop",
		"other"), "240.240.0.1", "240.240.0.2"))
	h.RunScript("echo '" + fmt.Sprintf(routed, 15054) + "' >>/etc/outrider/web.toml; systemctl " +
		"daemon-reload")

	const mesh, direct = "240.240.0.1", "192.0.2.9"
	resolves := func(name, want string) func() bool {
		return func() bool {
			out := h.RunScript("resolvectl query -4 --cache=no --legend=no " + name + " || true")
			return strings.HasPrefix(out+" ", name+": "+want+" ") &&
				strings.HasPrefix(h.RunScript("getent ahostsv4 "+name+" || true"), want+" ")
		}
	}
	undone := func(after string) {
		t.Helper()
		if !resolves("shop.test", direct)() || !resolves("elsewhere.test", direct)() {
			t.Errorf("after %s: %s", after, h.RunScript("resolvectl"))
		}
		if links := h.RunScript("ls /sys/class/net"); strings.Contains(links, "outrider") {
			t.Errorf("after %s: links %s", after, links)
		}
	}
	start := func(after string) {
		t.Helper()
		h.RunScript("systemctl start outrider")
		h.Eventually(time.Minute, "the name is routed "+after, resolves("shop.test", mesh))
	}

	start("after a start")
	if !resolves("elsewhere.test", direct)() || !resolves("below.shop.test", direct)() {
		t.Error(h.RunScript("resolvectl query elsewhere.test; resolvectl query below.shop.test"))
	}
	// at most A and AAAA, for each of two lookups
	if n := upstream.count("below.shop.test."); n == 0 || n > 4 {
		t.Errorf("%d queries for a forwarded name", n)
	}
	h.RunScript("systemctl restart systemd-resolved")
	h.Eventually(time.Minute, "the name is routed after a restart of resolved",
		resolves("shop.test", mesh))
	load := startDNSLoad(t, h, "shop.test.", mesh, "127.0.0.53:53")
	load.more(100)
	h.RunScript("systemctl restart outrider.service")
	load.more(200)
	load.stop("a restart of the agent")

	h.RunScript("systemctl start outrider@web")
	h.Eventually(time.Minute, "an instance's name is routed", resolves("other.test", "240.240.0.2"))
	h.RunScript("systemctl kill -s KILL --kill-who=main outrider.service")
	h.Eventually(time.Minute, "the name is direct", resolves("shop.test", direct))
	if !resolves("other.test", "240.240.0.2")() {
		t.Error("an instance's name is not routed after a kill of another agent")
	}
	h.RunScript("systemctl stop outrider@web")
	undone("a kill")

	start("after a kill")
	h.RunScript("kill -KILL $(systemctl show -P MainPID 'outrider-resolved@*.service')")
	h.Eventually(time.Minute, "the name is routed after a kill of the helper",
		resolves("shop.test", mesh))
	h.WriteText("/etc/outrider/mesh.d/more.yaml", strings.ReplaceAll(shop, "shop", "more"))
	h.Eventually(time.Minute, "a new name is routed", resolves("more.test", mesh))
	h.RunScript("systemctl stop outrider")
	undone("a stop")

	h.RunScript("systemctl mask --runtime --now systemd-resolved; systemctl start outrider")
	h.Eventually(time.Minute, "a condition tells that resolved is missing", func() bool {
		return strings.Contains(h.RunScript("outrider status"), "dns-route-unavailable")
	})
	h.RunScript("systemctl unmask --runtime systemd-resolved; systemctl start systemd-resolved")
	h.Eventually(time.Minute, "the name is routed", resolves("shop.test", mesh))
	h.RunScript("systemctl stop --no-block outrider.slice")
	h.Eventually(time.Minute, "the agent stops", func() bool {
		return h.RunScript("systemctl is-active outrider || true") == "deactivating"
	})
	if !resolves("shop.test", mesh)() {
		t.Error("the name is not routed while the agent drains")
	}
	h.RunScript("systemctl stop outrider.slice")
	undone("a stop of all units")
	if after := h.RunScript("readlink /etc/resolv.conf; cat /etc/resolv.conf"); after != before {
		t.Errorf("resolv.conf: %s\nbefore: %s", after, before)
	}
}
