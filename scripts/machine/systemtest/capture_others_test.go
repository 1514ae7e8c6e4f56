package systemtest

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/machine"
	"outrider.org/outrider/scripts/rig"
)

// Scripts to install and start other programs with firewall rules: firewalld, ufw, docker, and
// podman with netavark.
const (
	installOthers = `set -eu
cp -a /opt/firewalls/. /
cp /usr/share/ufw/iptables/*.rules /usr/share/ufw/ufw.conf /etc/ufw/
groupadd docker
cd /usr/share/polkit-1/actions
ln -s org.fedoraproject.FirewallD1.server.policy.choice org.fedoraproject.FirewallD1.policy
mkdir -p /etc/systemd/system/docker.service.d
printf '[Unit]\nStartLimitIntervalSec=0\n' >/etc/systemd/system/docker.service.d/limit.conf
cat >/etc/containers/storage.conf <<.
[storage]
driver = "vfs"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
.
systemctl daemon-reload
systemctl reload dbus.service`

	// startServers starts backends: in a container of docker (port 8080) and one of podman (8081),
	// on this host, and on the other host over IPv6.
	startServers = `set -eu
ip addr add 2001:db8::1/64 dev near nodad
ip -n far addr add 2001:db8::9/64 dev eth0 nodad
mkdir -p /srv/image
cp /opt/programs/backend /srv/image
sysctl -qw net.ipv4.ip_forward=1 # else docker drops what is forwarded to podman
systemctl start docker.service
tar -C /srv/image -c . | docker import - image
docker run -d --restart always --name docker -p 8080:80 image /backend -name docker -http :80
podman run -d --pids-limit 0 --name podman -p 8081:80 --rootfs /srv/image /backend -name podman -http :80
systemd-run --quiet --unit=ssh-like /opt/programs/backend -name host -http 198.51.100.1:22
systemd-run --quiet --unit=application /opt/programs/backend -name application -http 198.51.100.1:9100
systemd-run --quiet --unit=application6 /opt/programs/backend -name application -http [2001:db8::1]:9100
systemd-run --quiet --unit=far6 --property=NetworkNamespacePath=/run/netns/far \
	/opt/programs/backend -http [2001:db8::9]:80`
)

const (
	restartDocker = "systemctl restart docker.service"
	// restores podman's rules, which a reload of a firewall removes
	reloadPodman = "podman network reload --all"
)

// published are the ports of this host that forward to containers.
var published = map[string]string{"docker": "8080", "podman": "8081"}

// captured returns the number of connections that the rules of a configuration key have captured.
func (h *Host) captured(key string) int {
	h.t.Helper()
	n, err := strconv.Atoi(h.RunScript("outrider capture show | awk '$1 == \"" + key +
		"\" {n += $2} END {print n + 0}'"))
	if err != nil {
		h.t.Fatal(err)
	}
	return n
}

// answers waits until a server responds to a request from this host or, if fromFar is set, from the
// other host.
func (h *Host) answers(server string, fromFar bool, address string) {
	h.t.Helper()
	call := "curl -s -m 2 http://" + address + "/ || true"
	if fromFar {
		call = "ip netns exec far " + call
	}
	h.Eventually(time.Minute, server+" answers on "+address, func() bool {
		return strings.HasPrefix(h.RunScript(call), server+" answers")
	})
}

// reaches checks that the other host reaches the server "host", that both hosts reach the
// containers in servers, and that connections to containers are not captured.
func (h *Host) reaches(servers ...string) {
	h.t.Helper()
	h.answers("host", true, "198.51.100.1:22")
	for _, server := range servers {
		h.answers(server, false, "127.0.0.1:"+published[server])
		h.answers(server, false, "198.51.100.1:"+published[server])
		h.answers(server, true, "198.51.100.1:"+published[server])
	}
	// Repeated, because docker may still be replacing its rules.
	h.Eventually(time.Minute, "connections to published ports are not captured", func() bool {
		before := h.captured("capture.inbound_ports")
		for _, server := range servers {
			h.answers(server, true, "198.51.100.1:"+published[server])
		}
		return h.captured("capture.inbound_ports") == before
	})
}

// The nftables rules of Outrider and those of other programs do not affect each other when one of
// them is reloaded or restarted. No request is lost.
func TestCapture_BesideOtherFirewalls(t *testing.T) {
	h := newHost(t, machine.Options{BindMounts: []string{packages(t,
		"firewalls") + ":/opt/firewalls"},
		AllowedSystemCalls: []string{"@keyring", "bpf"}}) // system calls that containers need
	h.RunScript(outside)
	h.RunScript(installOthers)
	h.WriteText("/etc/outrider/conf.d/capture.toml", "[capture]\nmode = \"redirect\"\n"+
		"inbound_ports = [\"*\"]\nfail = \"closed\"\n")
	h.RunScript("systemctl start outrider")
	h.captureIs("on")
	h.RunScript(startServers)
	load := h.StartLoad(standard()/2, "-http", "198.51.100.9:80", "-http2", "", "-tcp", "", "-host",
		"outside.test")
	step := func(script string, n int, servers ...string) {
		t.Helper()
		for range n {
			load.Mark(script)
			t.Log(script)
			h.RunScript("set -e; " + script)
			h.reaches(servers...)
			outbound := h.captured("capture.outbound_cidrs")
			inbound := h.captured("capture.inbound_ports")
			for _, address := range []string{"198.51.100.9", "[2001:db8::9]"} {
				h.answers("backend", false, address)
			}
			for _, address := range []string{"198.51.100.1", "[2001:db8::1]"} {
				h.answers("application", true, address+":9100")
			}
			if h.captured("capture.outbound_cidrs") == outbound ||
				h.captured("capture.inbound_ports") == inbound {
				t.Errorf("%s: not captured:\n%s", script, h.RunScript("outrider capture show"))
			}
			h.captureIs("on")
		}
	}
	often := 1
	if full() {
		often = 10
	}
	step(restartDocker, often, "docker", "podman")
	step("podman restart -t 1 podman", 1, "docker", "podman")
	step(reloadPodman, often, "docker", "podman")
	step("nft flush ruleset", 1)

	h.RunScript("firewall-offline-cmd --add-forward-port=port=9200:proto=tcp:toport=9100")
	step("systemctl start firewalld.service; firewall-cmd --state; "+restartDocker+"; "+reloadPodman,
		1, "docker", "podman")
	for _, reload := range []string{"firewall-cmd --reload", "firewall-cmd --complete-reload"} {
		step(reload+"; "+reloadPodman, often, "docker", "podman")
		h.answers("application", true, "198.51.100.1:9200")
	}
	step("nft flush ruleset", 1)
	step("systemctl stop firewalld.service; "+restartDocker+"; "+reloadPodman, 1, "docker", "podman")

	step("ufw allow 22/tcp; ufw allow 15006/tcp; ufw default allow routed; ufw --force enable", 1,
		"docker", "podman")
	step("ufw reload", often, "docker", "podman")
	step("ufw --force disable; ufw --force enable", 1, "docker", "podman")
	step("nft flush ruleset", 1)
	step("ufw --force disable; "+restartDocker+"; "+reloadPodman, 1, "docker", "podman")

	report := load.Stop()
	t.Logf("%d requests, %d lost", report.Total, report.Lost)
	if lost := rig.CountLosses(report, nil); len(lost) > 0 || report.Total == 0 {
		t.Errorf("lost of %d requests: %v; marks %v", report.Total, lost, report.Marks)
	}
	h.RunScript("systemctl kill -s STOP outrider.service; systemctl kill -s KILL outrider-envoy.service")
	h.Eventually(time.Minute, "connections are refused without Envoy", func() bool {
		return strings.Contains(h.RunScript("curl -s -m 2 http://198.51.100.9/ || echo exit $?"), "exit 7")
	})
	for server, port := range published {
		h.answers(server, true, "198.51.100.1:"+port)
	}
	h.answers("host", true, "198.51.100.1:22")
	h.RunScript("systemctl kill -s CONT outrider.service; systemctl stop outrider")
	if left := h.RunScript("nft list tables"); strings.Contains(left, "outrider") {
		t.Errorf("left: %s", left)
	}
}
