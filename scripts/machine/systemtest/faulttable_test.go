package systemtest

import "strings"

// fault is a fault of an edge proxy, with the expected reports.
type fault struct {
	name   string
	breaks string // script that causes the fault
	fixes  string // script that repairs it; "": it ends by itself
	// status has texts in the output of outrider status: the cause and the fix.
	status []string
	// journal has additional texts in the journal.
	journal []string
	code    string // code of the condition, a label of the metric outrider_condition
	check   string // text in the output of outrider mesh check; "": no problem
	warns   bool   // mesh check reports a warning, not an error
	unready bool   // /healthz/ready returns 503
	silent  bool   // requests are not answered with 200
	down    bool   // the agent does not run
	heals   bool   // ends by itself so soon that only the journal reports it
}

const (
	dropIn = "/etc/outrider/conf.d/x.toml"
	meshIn = "/etc/outrider/mesh.d/x.yaml"
)

// toml returns a script that writes text to the drop-in.
func toml(text string) string { return "printf '%s\\n' '" + text + "' >" + dropIn }

// yaml returns a script that writes text to the mesh file.
func yaml(text string) string { return "cat >" + meshIn + " <<'EOF'\n" + text + "\nEOF" }

// object returns a mesh object as YAML, with a spec in flow style.
func object(kind, name, spec string) string {
	group := map[string]string{"EnvoyFilter": "networking.istio.io/v1alpha3",
		"WasmPlugin": "extensions.istio.io/v1alpha1"}[kind]
	if group == "" {
		group = "networking.istio.io/v1"
	}
	return "apiVersion: " + group + "\nkind: " + kind + "\nmetadata: {name: " + name +
		", namespace: default}\nspec: " + spec
}

// more returns a Gateway with a port, and a VirtualService for it. bind is "" or "bind: ADDRESS, ".
func more(port, bind string) string {
	return object("Gateway", "more", "{servers: [{port: {number: "+port+", name: more, protocol: "+
		"HTTP}, "+bind+"hosts: [more.test]}]}") + "\n---\n" + object("VirtualService", "more",
		"{hosts: [more.test], gateways: [more], http: [{directResponse: {status: 204}}]}")
}

// secured is a Gateway on port 8081 with the credential x.
var secured = strings.Replace(more("8081", ""), "protocol: HTTP}",
	"protocol: HTTPS}, tls: {mode: SIMPLE, credentialName: x}", 1)

// holds returns a script that starts a program that listens on a port.
func holds(port string) string {
	return "systemd-run --quiet --unit=holder --property=User=daemon /opt/programs/backend -http " +
		"0.0.0.0:" + port + " -tcp 127.0.0.1:9009; for i in $(seq 100); do ss -Hltn sport = :" + port +
		" | grep -q . && break; sleep 0.1; done; "
}

const (
	releases   = "systemctl stop holder.service; "
	noDropIn   = "rm -f " + dropIn
	noMeshIn   = "rm -f " + meshIn
	stopAgent  = "systemctl stop outrider.service; "
	startAgent = "; systemctl start --no-block outrider.service"
)

// filter returns an EnvoyFilter that inserts a filter into all HTTP listeners of Gateways.
func filter(name, config string) string {
	return object("EnvoyFilter", "x", "{configPatches: [{applyTo: HTTP_FILTER, match: {context: GATEWAY, "+
		"listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}, "+
		"patch: {operation: INSERT_BEFORE, value: {name: envoy.filters.http."+name+", typed_config: {"+
		config+"}}}}]}")
}

const pair = "/etc/outrider/tls/a"

// newKey returns a script that replaces a private key by another one.
func newKey(path, owner string) string {
	return "cp -p " + path + " /root/kept.key; openssl ecparam -genkey -name prime256v1 -noout -out " +
		"/root/new.key; install -o " + owner + " -m 0400 /root/new.key " + path + ".new; mv " + path +
		".new " + path
}

// swapPair returns a script that replaces the certificate and the key in pair by those in /root
// with a name.
func swapPair(name string) string {
	return "[ -e /root/kept.crt ] || cp -p " + pair + ".crt /root/kept.crt; [ -e /root/kept.pair ] || " +
		"{ cp -p " + pair + ".key /root/kept.key; touch /root/kept.pair; }; for f in key crt; do install " +
		"-o outrider-envoy -m 0400 /root/" + name + ".$f " + pair + ".$f.new; mv " + pair + ".$f.new " +
		pair + ".$f; done"
}

// fills returns a script that mounts a small file system on a folder and fills it.
func fills(folder string) string {
	return stopAgent + "owner=$(stat -c %u:%g " + folder + "); mode=$(stat -c %a " + folder + "); " +
		"mount -t tmpfs -o size=2m tmpfs " + folder + "; chown $owner " + folder + "; chmod $mode " +
		folder + startAgent + "; outrider wait --timeout 30s; head -c 4M /dev/zero >" + folder +
		"/fill; outrider reload"
}

// faults are faults of an edge proxy that administrators encounter.
var faults = []fault{
	// This fault must be the first: the journal has one line per minute for a condition, and a
	// later fault has the same condition.
	{name: "key of another credential", code: "secret-unavailable", fixes: noMeshIn, check: "tls.key",
		breaks: "install -d -m 0750 -g outrider /etc/outrider/credentials/x; install -o outrider -m 0400 " +
			"/root/soon.crt /etc/outrider/credentials/x/tls.crt; install -o outrider -m 0400 " +
			"/root/expired.key /etc/outrider/credentials/x/tls.key; " + yaml(secured),
		status: []string{"credentials/x/tls.", "the private key is not that of the certificate in "}},

	// Faults in the agent's configuration.
	{name: "unknown key", breaks: toml("nonsense = 1"), fixes: noDropIn,
		status: []string{dropIn + ":1:1: nonsense: ", "epoch "}, code: "configuration-refused"},
	{name: "unknown table", breaks: toml("[proxy]\nconcurrency = 2"), fixes: noDropIn,
		status: []string{dropIn + ":1:1: proxy: there is no such table; did you mean [envoy]?"},
		code:   "configuration-refused"},
	{name: "wrong type", breaks: toml("[envoy]\nconcurrency = \"two\""), fixes: noDropIn,
		status: []string{dropIn + ":2:1: envoy.concurrency: "}, code: "configuration-refused"},
	{name: "file without rights", breaks: "install -m 0600 /dev/null " + dropIn, fixes: noDropIn,
		status: []string{dropIn + ": cannot be read: permission denied; chgrp outrider"},
		code:   "configuration-refused"},
	{name: "access log that the unit forbids",
		breaks: toml("[telemetry]\naccess_log_file = \"/srv/access.log\""), fixes: noDropIn,
		status: []string{dropIn + ":2:1: telemetry.access_log_file: ", "ReadWritePaths="},
		code:   "configuration-refused"},
	{name: "restart with an invalid configuration",
		breaks: toml("nonsense = 1") + "; systemctl restart outrider.service || true",
		fixes:  noDropIn + startAgent, down: true,
		status: []string{"outrider.service failed (exit code 78): " + dropIn + ":1:1: nonsense",
			"Envoy continues serving in outrider-envoy.service"}},

	// Faults in the mesh configuration.
	{name: "unknown field", breaks: yaml(object("VirtualService", "x", "{hosts: [x.test], htpp: []}")),
		fixes: noMeshIn, status: []string{meshIn + ":4: VirtualService default/x: ", "http"},
		code: "mesh-problems", check: meshIn + ":4: "},
	{name: "no YAML", breaks: yaml("server { listen 80; }"), fixes: noMeshIn,
		status: []string{meshIn + ":1: "}, code: "mesh-problems", check: meshIn + ":1: "},
	{name: "wrong type in the mesh", fixes: noMeshIn, code: "mesh-problems", check: meshIn + ":4: ",
		breaks: yaml(object("VirtualService", "x", "{hosts: x.test, http: []}")),
		status: []string{meshIn + ":4: VirtualService default/x: spec.hosts"}},
	{name: "wrong kind", fixes: noMeshIn, code: "mesh-problems", check: meshIn + ":",
		breaks: yaml(object("VirtualServices", "x", "{hosts: [x.test]}")),
		status: []string{meshIn + ":", "VirtualService"}},
	{name: "plugin without a module",
		breaks: yaml(object("WasmPlugin", "x", "{phase: AUTHZ, selector: "+
			"{matchLabels: {app: other}}}")),
		fixes: noMeshIn, code: "mesh-problems", check: meshIn + ":4: ",
		status: []string{meshIn + ":1: ", "is denied", "no valid version", "remove it"}},
	{name: "destination that does not exist", warns: true, fixes: noMeshIn,
		breaks: yaml(object("VirtualService", "x", "{hosts: [x.test], gateways: [edge], http: [{route: "+
			"[{destination: {host: nowhere.test}}]}]}")), code: "mesh-problems",
		status: []string{meshIn + ":1: VirtualService default/x: "},
		check:  "no service has the host nowhere.test"},
	{name: "same object twice", breaks: "cp /etc/outrider/mesh.d/web.yaml " + meshIn, fixes: noMeshIn,
		warns: true, status: []string{meshIn + ":", "web.yaml:1"}, code: "mesh-problems",
		check: "warning: " + meshIn + ":1: "},
	{name: "filter that Envoy refuses", fixes: noMeshIn, code: "mesh-problems",
		breaks: yaml(filter("lua", "\"@type\": type.googleapis.com/envoy.extensions.filters.http.lua.v3."+
			"Lua, default_source_code: {inline_string: \"this is no Lua\"}")),
		status: []string{meshIn + ":1: EnvoyFilter default/x: ", "script load error"},
		check:  meshIn + ":1: "},
	{name: "filter with a misspelt field", fixes: noMeshIn, code: "mesh-problems",
		breaks: yaml(filter("health_check", "\"@type\": type.googleapis.com/envoy.extensions.filters."+
			"http.health_check.v3.HealthCheck, pass_trough_mode: false")),
		status: []string{meshIn + ":4: EnvoyFilter default/x: ", "pass_trough_mode"},
		check:  meshIn + ":4: "},
	{name: "folder without rights", breaks: "chmod 000 /etc/outrider/mesh.d",
		fixes: "chmod 755 /etc/outrider/mesh.d", status: []string{"/etc/outrider/mesh.d", "cannot"},
		code: "mesh-problems", check: "/etc/outrider/mesh.d"},
	{name: "folder that is gone", breaks: "mv /etc/outrider/mesh.d /etc/outrider/away",
		fixes: "mv /etc/outrider/away /etc/outrider/mesh.d", code: "mesh-problems",
		status: []string{"/etc/outrider/mesh.d:1: is gone: its 1 file stays in force",
			"move it back"},
		warns: true, check: "/etc/outrider/mesh.d:1: is gone"},
	{name: "mesh file without rights", breaks: "install -m 0600 /dev/null " + meshIn, fixes: noMeshIn,
		status: []string{meshIn + ":1: user outrider cannot read it", "chgrp outrider "},
		// the unreadable file may contain policies, so nothing is served
		code: "mesh-problems", check: meshIn, silent: true},

	// Faults of ports.
	{name: "port of a new Gateway is taken", breaks: holds("8081") + yaml(more("8081", "")),
		fixes: releases + "sleep 3; curl -sf -o /dev/null -H 'Host: more.test' " +
			"http://127.0.0.1:8081/ && " + noMeshIn, code: "listener-unbound",
		status: []string{meshIn + ":1: Gateway default/more: nothing listens on 0.0.0.0:8081: the port is " +
			"taken by holder.service of user daemon; end it, or give the Gateway another port"},
		check: meshIn + ":1: Gateway default/more: nothing listens on 0.0.0.0:8081"},
	{name: "port is taken at the start", code: "listener-unbound",
		breaks: stopAgent + holds("8081") + yaml(more("8081", "")) + "\n" + startAgent[2:],
		fixes:  releases,
		status: []string{meshIn + ":1: Gateway default/more: ", "holder.service of user daemon"},
		check:  meshIn + ":1: Gateway default/more: nothing listens on 0.0.0.0:8081"},
	{name: "no port is free at the start", code: "listener-unbound", unready: true, silent: true,
		breaks: "mv /etc/outrider/mesh.d/web.yaml /root; " + stopAgent + holds("8081") +
			yaml(more("8081", "")) + "\n" + startAgent[2:],
		fixes:  releases + "mv /root/web.yaml /etc/outrider/mesh.d; " + noMeshIn,
		status: []string{"not ready: none of the listeners", "holder.service of user daemon"},
		check:  meshIn + ":1: Gateway default/more: nothing listens on 0.0.0.0:8081"},
	{name: "address that the host does not have", breaks: yaml(more("8081", "bind: 192.0.2.77, ")),
		fixes: "ip address add 192.0.2.77/32 dev lo", code: "listener-unbound",
		status: []string{meshIn + ":1: Gateway default/more: nothing listens on 192.0.2.77:8081: this " +
			"host does not have the address", "or add it to the host"},
		check: meshIn + ":1: Gateway default/more: "},
	{name: "port of the agent", breaks: yaml(more("15020", "")), fixes: noMeshIn,
		code: "mesh-problems", check: meshIn + ":1: ", warns: true,
		status: []string{"port 15020 belongs to [status] address of the agent; give the server another"}},
	{name: "readiness port is taken at the start", unready: true, silent: true, code: "port-taken",
		breaks: stopAgent + holds("15021") + startAgent[2:], fixes: releases,
		status: []string{"Envoy cannot start yet: ", "15021", "holder.service of user daemon"}},

	// Faults of certificates.
	{name: "key of another certificate", breaks: newKey(pair+".key", "outrider-envoy"),
		fixes: "mv /root/kept.key " + pair + ".key", code: "mesh-problems",
		status: []string{"/etc/outrider/mesh.d/web.yaml:", "Gateway default/edge", pair},
		check:  "Gateway default/edge"},
	{name: "key that Envoy cannot read", breaks: "chown root " + pair + ".key",
		fixes:  "chown outrider-envoy " + pair + ".key",
		status: []string{"/etc/outrider/mesh.d/web.yaml:1: Gateway default/edge: ", pair + ".key"},
		code:   "mesh-problems",
		check:  "user outrider-envoy cannot read " + pair + ".key: chown outrider-envoy "},
	{name: "certificate that is gone", breaks: "mv " + pair + ".crt /root",
		fixes: "mv /root/a.crt " + pair + ".crt", code: "mesh-problems",
		status: []string{pair + ".crt does not exist"}, check: pair + ".crt does not exist"},

	{name: "certificate of files has expired", breaks: swapPair("expired"), fixes: swapPair("kept"),
		status: []string{pair + ".crt (/etc/outrider/mesh.d/web.yaml:1 Gateway default/edge): expired on ",
			"replace the file"},
		code: "certificate-expired", check: "web.yaml:1: Gateway default/edge: "},
	{name: "certificate of files ends soon", breaks: swapPair("soon"), fixes: swapPair("kept"),
		status: []string{pair + ".crt (/etc/outrider/mesh.d/web.yaml:1 Gateway default/edge): ",
			"the file has not been replaced and expires in "},
		code: "certificate-not-renewed", warns: true, check: "web.yaml:1: Gateway default/edge: "},
	{name: "certificate of a credential has expired", code: "secret-unavailable", fixes: noMeshIn,
		breaks: "install -d -m 0750 -g outrider /etc/outrider/credentials/x; for f in crt key; do " +
			"install -o outrider -m 0400 /root/expired.$f /etc/outrider/credentials/x/tls.$f; done; " +
			yaml(secured),
		status: []string{"credentials/x/tls.crt", "expired on "},
		check:  "expired on "},

	// Full disks.
	{name: "disk of the state is full", code: "disk-full",
		breaks: fills("/var/lib/outrider"), fixes: "rm /var/lib/outrider/fill; outrider reload",
		status: []string{"the file system of /var/lib/outrider", " is full (", "free space"}},
	{name: "disk of the access log is full", code: "disk-full",
		breaks: toml("[telemetry]\naccess_log_file = \"/var/log/outrider/a.log\"") + "; " +
			fills("/var/log/outrider") + "; for i in $(seq 40); do curl -s -o /dev/null -H 'Host: " +
			"web.test' http://127.0.0.1:80/; done; sleep 2; outrider reload",
		fixes:  "rm /var/log/outrider/fill; " + noDropIn + "; outrider reload",
		status: []string{"lines of /var/log/outrider/a.log are lost"}},

	// Faults of backends and processes.
	{name: "backend is down", breaks: "systemctl stop backend.service; for i in 1 2 3; do curl -s -o " +
		"/dev/null -H 'Host: web.test' http://127.0.0.1:80/; sleep 1.5; done", silent: true, code: "backend-failing",
		fixes: "systemd-run --quiet --unit=backend /opt/programs/backend -http 127.0.0.1:9000 -tcp " +
			"127.0.0.1:9001; for i in $(seq 50); do sleep 0.2; [ $(curl -s -o /dev/null -w '%{http_code}' " +
			"-H 'Host: web.test' http://127.0.0.1:80/) = 200 ] && break; done",
		status: []string{"backend backend.test", "127.0.0.1:9000"}, warns: true,
		check: "warning: "},
	{name: "Envoy's program is gone, and Envoy ends", unready: true, silent: true, code: "envoy-down",
		breaks: "rm /usr/local/bin/envoy; pkill -KILL -x envoy",
		fixes:  "ln -s /opt/envoy/envoy /usr/local/bin/envoy",
		status: []string{"No Envoy serves: ", "/usr/local/bin/envoy", "no such file"}},
	{name: "Envoy is killed", heals: true, breaks: "pkill -KILL -x envoy",
		journal: []string{"was ended by SIGKILL: killed from outside"}},
	{name: "the keeper is killed", heals: true, breaks: "pkill -KILL -x outrider-keeper",
		journal: []string{"keeper has ended"}},
	{name: "the agent is killed", heals: true, breaks: "pkill -KILL -x outriderd",
		journal: []string{"code=killed, status=9/KILL"}},
	{name: "all three are killed at once", heals: true,
		breaks:  "pkill -KILL -x 'outriderd|outrider-keeper|envoy'",
		journal: []string{"code=killed, status=9/KILL"}},
	{name: "the keeper's unit is stopped", heals: true,
		breaks:  "systemctl stop outrider-envoy.service || true",
		journal: []string{"Stopped outrider-envoy.service", "No Envoy serves: "}},
}
