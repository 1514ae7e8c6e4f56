package systemtest

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"outrider.org/outrider/scripts/parts"
)

const consulUnit = `[Unit]
Description=Consul
[Service]
ExecStart=/opt/consul/consul agent -config-dir /etc/consul
Restart=always
RestartSec=100ms
[Install]
WantedBy=multi-user.target
`

const consulConfig = `server = true
bootstrap_expect = 1
node_name = "server"
data_dir = "/var/lib/consul"
bind_addr = "127.0.0.1"
client_addr = "127.0.0.1"
log_level = "warn"
disable_update_check = true
performance { raft_multiplier = 1 }
ports { dns = -1 grpc = -1 grpc_tls = -1 }
`

const joinedServer = `mesh_config_file = "/etc/outrider/meshconfig.yaml"
[listen]
plaintext = ""
[auth]
join_key_file = "/etc/outrider/join.pub"
[registration]
enabled = true
store = "consul"
grace_period = %q
[[source]]
type = "files"
paths = ["/etc/outrider/mesh.d"]
[[registry]]
type = "consul"
`

// joinedDiscoveryd is the fleetServer with outrider-discoveryd and Consul, which run on one
// machine.
type joinedDiscoveryd struct{ *Host }

// startDiscoveryd boots a machine in the network between the hosts, and starts Consul and
// outrider-discoveryd on it, with a new CA.
func (f *joinedFleet) startDiscoveryd() {
	f.t.Helper()
	program, err := exec.CommandContext(f.t.Context(),
		filepath.Join(parts.RepositoryRoot(), "scripts", "get-consul")).Output()
	if err != nil {
		f.t.Fatalf("scripts/get-consul: %v", err)
	}
	s := joinedDiscoveryd{f.boot(f.middle,
		filepath.Dir(strings.TrimSpace(string(program)))+":/opt/consul")}
	s.WriteText("/etc/consul/consul.hcl", consulConfig)
	s.WriteText("/etc/systemd/system/consul.service", consulUnit)
	s.RunScript("systemctl daemon-reload; systemctl enable --now consul.service")
	s.installDiscoveryd()
	said := s.RunScript("outrider-discoveryd ca init /etc/outrider/ca " + f.hosts[0].gateway + " " +
		f.hosts[1].gateway)
	_, config, _ := strings.Cut(said, "/etc/outrider/discoveryd.d/ca.toml:\n")
	config, _, _ = strings.Cut(config, "\nThen:")
	s.WriteText("/etc/outrider/discoveryd.d/10-ca.toml", config)
	s.WriteText("/etc/outrider/discoveryd.d/20-fleet.toml", fmt.Sprintf(joinedServer,
		joinedGrace.String()))
	s.WriteText("/etc/outrider/mesh.d/mesh.yaml", joinedMesh)
	s.WriteText("/etc/outrider/meshconfig.yaml", joinedMeshConfig)
	f.server = s
	f.route("host: web.test")
	s.RunScript(`set -eu
umask 077
openssl ecparam -genkey -name prime256v1 -noout -out /root/join.key
openssl ec -in /root/join.key -pubout -out /etc/outrider/join.pub 2>/dev/null
chmod 0644 /etc/outrider/join.pub
chown outrider-discoveryd /etc/outrider/ca/*.key
systemctl enable --now outrider-discoveryd.service`)
}

func (h *Host) installDiscoveryd() {
	h.t.Helper()
	h.RunScript(fmt.Sprintf("dpkg -i %s/%s/outrider-discoveryd_%[2]s-1_amd64.deb", debPlace, oldVersion))
}

func (s joinedDiscoveryd) invite() (token, roots string) {
	return s.RunScript("outrider-discoveryd token --service-account vm/web --key /root/join.key " +
		"2>/dev/null"), s.RunScript("cat /etc/outrider/ca/root.pem")
}

func (s joinedDiscoveryd) entries() (all []string, err error) {
	const prefix = "outrider/registration/workloads/"
	text, err := s.Run(s.t.Context(), "/opt/consul/consul", "kv", "get", "-recurse", prefix)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, prefix) {
			all = append(all, line)
		}
	}
	return all, err
}

func (s joinedDiscoveryd) route(object string) {
	s.t.Helper()
	s.WriteText("/etc/outrider/mesh.d/routing.yaml", object)
}

// kill also waits until the lease of the killed process has expired. Workloads whose registrations
// still belong to that process would then be removed.
func (s joinedDiscoveryd) kill() (instance string) {
	s.t.Helper()
	before := s.instance()
	s.RunScript("systemctl kill -s KILL outrider-discoveryd.service")
	s.Eventually(time.Minute, "only the next instance has a lease", func() bool {
		instance = s.instance()
		return instance != "" && instance != before
	})
	return instance
}

// instance returns the name of the outrider-discoveryd process that has the only lease, "" if there
// is not exactly one lease.
func (s joinedDiscoveryd) instance() string {
	const prefix = "outrider/registration/servers/"
	text, err := s.Run(s.t.Context(), "/opt/consul/consul", "kv", "get", "-keys", prefix)
	if err != nil || strings.Count(text, prefix) != 1 {
		return ""
	}
	return strings.TrimPrefix(text, prefix)
}

// outages returns functions that restart Consul's unit, that kill Consul, and that stop it for
// longer than the grace period. Its data are kept.
func (s joinedDiscoveryd) outages() (all []func()) {
	for _, command := range []string{"systemctl restart consul.service",
		"systemctl kill -s KILL consul.service",
		fmt.Sprintf("systemctl stop consul.service; sleep %d; systemctl start consul.service",
			int((joinedGrace + 2*time.Second).Seconds()))} {
		all = append(all, func() { s.RunScript(command) })
	}
	return all
}

func (s joinedDiscoveryd) rotation() (steps []func()) {
	s.t.Helper()
	s.RunScript(`set -eu
outrider-discoveryd ca init /etc/outrider/ca2 mesh.test
chown outrider-discoveryd /etc/outrider/ca2/*.key
cat /etc/outrider/ca/root.pem /etc/outrider/ca2/root.pem >/etc/outrider/roots.pem`)
	old, next := "/etc/outrider/ca/", "/etc/outrider/ca2/"
	for _, files := range [][3]string{{old + "ca.pem", old + "ca.key", "/etc/outrider/roots.pem"},
		{next + "ca.pem", next + "ca.key", "/etc/outrider/roots.pem"},
		{next + "ca.pem", next + "ca.key", next + "root.pem"}} {
		steps = append(steps, func() {
			s.WriteText("/etc/outrider/discoveryd.d/30-rotated.toml", fmt.Sprintf(
				"[ca]\ncert_file = %q\nkey_file = %q\nroot_file = %q\n",
				files[0], files[1], files[2]))
			s.RunScript("systemctl reload outrider-discoveryd.service")
		})
	}
	return steps
}

func (s joinedDiscoveryd) away(do func()) {
	s.t.Helper()
	s.RunScript("systemctl stop outrider-discoveryd.service consul.service")
	do()
	s.RunScript("systemctl start consul.service outrider-discoveryd.service")
}
