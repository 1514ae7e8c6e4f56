package systemtest

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// startDiscoveryd starts an outrider-discoveryd that listens on a port, in a transient unit with
// this name. auth has more keys of [auth]. Its CA is one that `ca init` has created. It writes a
// token of service account web in namespace shop to /root/web.token.
func (h *Host) startDiscoveryd(name, port, auth string) {
	h.t.Helper()
	h.WriteText("/root/"+name+".toml", `[paths]
state_dir = "/root/`+name+`.state"
[listen]
plaintext = ""
tls = "localhost:`+port+`"
monitoring = ""
[tls]
cert_file = "/root/ca/server.pem"
key_file = "/root/ca/server.key"
[auth]
join_key_file = "/root/join.pub"
`+auth+`
[ca]
enabled = true
cert_file = "/root/ca/ca.pem"
key_file = "/root/ca/ca.key"
root_file = "/root/ca/root.pem"
[[source]]
paths = ["/root/mesh"]
`)
	h.RunScript(`set -e
cd /root
discoveryd=/opt/discoveryd/outrider-discoveryd
[ -e ca ] || $discoveryd ca init ca localhost >/dev/null
[ -e join.pub ] || { openssl genpkey -algorithm ed25519 -out join.key
	openssl pkey -in join.key -pubout -out join.pub; }
mkdir -p mesh && cp /etc/outrider/mesh.d/web.yaml mesh
$discoveryd token --service-account shop/web --key join.key >web.token
systemd-run --quiet --unit=` + name + ` $discoveryd --config /root/` + name + `.toml`)
	h.Eventually(time.Minute, name+" listens", func() bool {
		return h.RunScript("ss -Htln 'sport = :"+port+"'") != ""
	})
}

// A host whose agent was never started joins with one command, stays in the mesh when the agent
// restarts, although the token is not kept, and leaves. A join that fails leaves the unit stopped
// and disabled, and no files.
func TestJoin_FirstStartAndLeave(t *testing.T) {
	t.Parallel()
	program := parts.BuildProgram(t, "outrider-discoveryd")
	h := NewHost(t, filepath.Dir(program)+":/opt/discoveryd")
	h.startDiscoveryd("open", "15012", "")
	h.startDiscoveryd("closed", "15112", `require = "token"`)
	const join = " --token /root/web.token --ca /root/ca/root.pem"
	unit := func(active, enabled string) {
		t.Helper()
		if got := h.RunScript("systemctl is-active outrider; systemctl is-enabled outrider; true"); got !=
			active+"\n"+enabled {
			t.Errorf("the unit is %s", got)
		}
	}
	files := func() string { return h.RunScript("find /etc/outrider -exec stat -c '%A %U %G %s %n' {} +") }
	before := files()

	if out, err := h.Run(t.Context(), "runuser", "-u", "nobody", "--", "outrider", "join", "localhost",
		"--token", "/root/web.token", "--ca", "/root/ca/root.pem"); err == nil {
		t.Errorf("nobody joins: %s", out)
	}
	h.RunScript("systemctl mask outrider")
	out := h.RunScript("outrider join localhost" + join + " 2>&1; echo exit $?; outrider status 2>&1; true")
	const permit = "systemctl unmask outrider"
	if !strings.Contains(out, "outrider.service is masked; unmask it first: "+permit) ||
		!strings.Contains(out, "exit 1") || strings.Count(out, permit) != 2 {
		t.Errorf("with a masked unit: %s", out)
	}
	h.RunScript(permit)
	out = h.RunScript("outrider join localhost:15112" + join + " --timeout 10s 2>&1; echo exit $?")
	if !strings.Contains(out, "the join was undone") || !strings.HasSuffix(out, "exit 1") {
		t.Errorf("join: %s", out)
	}
	unit("inactive", "disabled")
	if stored := h.RunScript("find /var/lib/outrider -name certificate.sealed"); stored != "" {
		t.Errorf("the undone join left %s", stored)
	}
	if after := files(); after != before {
		t.Errorf("files:\n%s\nbefore the join:\n%s", after, before)
	}

	out = h.RunScript("umask 077; outrider join localhost" + join)
	t.Log(out)
	unit("active", "enabled")
	h.MustServe()
	if s := h.Status(); !s.Ready || s.Discovery.State != "connected" {
		t.Errorf("%+v", s)
	}
	if got := h.RunScript("stat -c '%a %U %G %n' /etc/outrider/join/* /etc/outrider/conf.d/*"); got !=
		"644 root outrider /etc/outrider/join/root.pem\n"+
			"640 root outrider /etc/outrider/conf.d/90-join.toml" {
		t.Errorf("files: %s", got)
	}
	h.RunScript("systemctl restart outrider")
	h.Eventually(time.Minute, "the restarted agent is in the mesh", func() bool {
		s := h.Status()
		return s.Ready && s.Discovery.State == "connected" && len(s.Conditions) == 0
	})
	out = h.RunScript("outrider leave")
	t.Log(out)
	h.MustServe()
	if s := h.Status(); !s.Ready || s.Discovery.State != "embedded" || len(s.Identities) > 0 {
		t.Errorf("%+v", s)
	}
	if after := files(); after != before {
		t.Errorf("files:\n%s\nbefore the join:\n%s", after, before)
	}
	h.Eventually(time.Minute, "the stored certificate is removed", func() bool {
		return h.RunScript("find /var/lib/outrider -name certificate.sealed") == ""
	})
}
