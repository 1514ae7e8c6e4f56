package main_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/signer"
	"outrider.org/outrider/scripts/rig"
)

// joinable is an agent without a mesh, and two outrider-discoveryds whose CA accepts join tokens.
type joinable struct {
	*rig.Rig
	t       *testing.T
	program string // path of outrider-discoveryd
	address string // TLS address of the server whose xDS accepts certificates of its own CA
	closed  string // TLS address of the server that refuses them for xDS
	ca      string // folder with the files of the CA
}

// newJoinable starts the agent and the servers. more is additional configuration of the agent.
func newJoinable(t *testing.T, more string) *joinable {
	t.Helper()
	j := &joinable{Rig: rig.New(t, rig.Options{Race: true}), t: t,
		program: parts.BuildProgram(t, "outrider-discoveryd")}
	j.ca = filepath.Join(j.Dir, "ca")
	j.run("ca", "init", j.ca)
	j.run("ca", "init", j.ca+"2")
	j.WriteFile("server.d/web.yaml", j.WebServiceYAML(j.Ports.Backend))
	for _, name := range []string{"join", "other"} {
		j.openssl(name)
	}
	j.address = j.serve(`debug_identities = ["spiffe://cluster.local/ns/shop/sa/web"]`)
	j.closed = j.serve(`require = "token"`)
	j.WriteFile("conf.d/40-own.toml", more)
	j.StartReady()
	return j
}

// serve starts an outrider-discoveryd with additional keys of [auth], and returns its address.
func (j *joinable) serve(auth string) string {
	j.t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", parts.FreePort(j.t))
	parts.StartProcess(j.t, parts.Discoveryd{Program: j.program,
		MeshFolder: filepath.Join(j.Dir, "server.d"), TLS: address, ExtraConfig: fmt.Sprintf(`
[tls]
cert_file = "%[1]s/server.pem"
key_file = "%[1]s/server.key"
[auth]
join_key_file = "%[2]s/join.pub"
%[3]s
[ca]
enabled = true
cert_file = "%[1]s/ca.pem"
key_file = "%[1]s/ca.key"
root_file = "%[1]s/root.pem"
`, j.ca, j.Dir, auth)}.Command(j.t))
	return address
}

// run runs a subcommand of outrider-discoveryd, and returns its output.
func (j *joinable) run(arguments ...string) string {
	j.t.Helper()
	out, err := exec.Command(j.program, arguments...).Output()
	if err != nil {
		j.t.Fatalf("outrider-discoveryd %v: %v: %s", arguments, err, out)
	}
	return string(out)
}

// openssl creates the key pair NAME.key and NAME.pub for join tokens.
func (j *joinable) openssl(name string) {
	j.t.Helper()
	path := filepath.Join(j.Dir, name)
	out, err := exec.Command("sh", "-c", "openssl genpkey -algorithm ed25519 -out "+path+".key && "+
		"openssl pkey -in "+path+".key -pubout -out "+path+".pub").CombinedOutput()
	if err != nil {
		j.t.Fatalf("openssl: %v: %s", err, out)
	}
}

// read returns the content of a file.
func (j *joinable) read(path string) string {
	j.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		j.t.Fatal(err)
	}
	return string(text)
}

// token writes a token for a service account, signed with KEY.key, and returns its path.
func (j *joinable) token(account, key string, ttl time.Duration) string {
	j.t.Helper()
	j.WriteFile("token", j.run("token", "--service-account", account, "--key",
		filepath.Join(j.Dir, key+".key"), "--ttl", ttl.String()))
	return filepath.Join(j.Dir, "token")
}

// forged returns the path of a token without a valid signature.
func (j *joinable) forged(claims map[string]any) string {
	j.t.Helper()
	all := map[string]any{"iss": "outrider-discoveryd", "aud": "istio-ca",
		"sub": "system:serviceaccount:shop:web", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(all, claims)
	text, err := json.Marshal(all)
	if err != nil {
		j.t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	j.WriteFile("token", encode([]byte(`{"alg":"EdDSA"}`))+"."+encode(text)+".AAAA")
	return filepath.Join(j.Dir, "token")
}

// join runs `outrider join` with a token and more arguments.
func (j *joinable) join(token string, more ...string) rig.CommandResult {
	j.t.Helper()
	return j.RunOutrider(append([]string{"join", j.address, "--token", token, "--ca",
		filepath.Join(j.ca, "root.pem")}, more...)...)
}

func (j *joinable) status() api.Status {
	j.t.Helper()
	var status api.Status
	j.RunOutriderJSON(&status, "status")
	return status
}

// files returns the mode and the content of each configuration file and folder, by path.
func (j *joinable) files() map[string]string {
	j.t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"outrider.toml", "conf.d/*", "conf.d", "join/*", "join"} {
		paths, _ := filepath.Glob(filepath.Join(j.Dir, pattern))
		for _, path := range paths {
			text, _ := os.ReadFile(path)
			info, err := os.Stat(path)
			if err != nil {
				j.t.Fatal(err)
			}
			all[path] = fmt.Sprint(info.Mode(), " ", string(text))
		}
	}
	return all
}

// A host under load joins the mesh of an outrider-discoveryd, and leaves it. No request is lost.
func TestJoin_AndLeaveUnderLoad(t *testing.T) {
	t.Parallel()
	j := newJoinable(t, "")
	before := j.files()
	load := j.StartLoad(0.1)
	var joined struct {
		SPIFFEID string `json:"spiffe_id"`
	}
	j.RunOutriderJSON(&joined, "join", j.address, "--token", j.token("shop/web", "join", time.Hour),
		"--ca",
		filepath.Join(j.ca, "root.pem"))
	if want := "spiffe://cluster.local/ns/shop/sa/web"; joined.SPIFFEID != want {
		t.Errorf("joined as %s, not %s", joined.SPIFFEID, want)
	}
	status := j.status()
	if d := status.Discovery; d.State != "connected" || d.Address != j.address || !status.Ready {
		t.Errorf("%+v", status)
	}
	for _, i := range status.Identities {
		if i.Name == "default" && i.SPIFFEID != "spiffe://cluster.local/ns/shop/sa/web" {
			t.Errorf("%+v", i)
		}
	}
	var clients []struct {
		Proxy string `json:"proxy"`
	}
	j.RunOutriderJSON(&clients, "proxy", "status", "--upstream")
	if len(clients) != 1 || !strings.Contains(clients[0].Proxy, "~shop.svc.") {
		t.Errorf("proxies of the server: %v", clients)
	}
	again := j.join(filepath.Join(j.Dir, "token"))
	if again.ExitCode != 1 || !strings.Contains(again.Stderr, "has joined the mesh of "+j.address) {
		t.Errorf("a second join: exit %d: %s", again.ExitCode, again.Stderr)
	}
	left := j.RunOutrider("leave")
	if left.ExitCode != 0 {
		t.Fatalf("exit %d: %s%s", left.ExitCode, left.Stdout, left.Stderr)
	}
	if lost := rig.CountLosses(load.Stop(), nil); len(lost) > 0 {
		t.Errorf("lost: %v", lost)
	}
	if status = j.status(); status.Discovery.State != "embedded" || len(status.Identities) > 0 ||
		!status.Ready || len(status.Conditions) > 0 {
		t.Errorf("%+v", status)
	}
	if after := j.files(); fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("files %v, before the join %v", after, before)
	}
	if left = j.RunOutrider("leave"); left.ExitCode != 0 ||
		!strings.Contains(left.Stdout, "has joined no mesh") {
		t.Errorf("left again: exit %d: %s%s", left.ExitCode, left.Stdout, left.Stderr)
	}
}

// A host joins the mesh of a real istiod, with a token of an issuer that istiod trusts, and leaves
// it.
func TestJoin_Istiod(t *testing.T) {
	t.Parallel()
	// The join has no --group: without an API server, istiod cannot register workloads.
	authority := signer.Start(t, pkitest.NewAuthority(t, "root", nil))
	r := rig.New(t, rig.Options{Race: true})
	authority.WriteConfigFile(t, "web.yaml", r.WebServiceYAML(r.Ports.Backend))
	r.WriteFile("root.pem", string(pkitest.PEM(authority.Root.Certificate)))
	r.WriteFile("token", authority.Token(t, time.Hour))
	r.StartReady()
	load := r.StartLoad(0.1)
	got := r.RunOutrider("join", authority.Address, "--token", filepath.Join(r.Dir, "token"), "--ca",
		filepath.Join(r.Dir, "root.pem"))
	if got.ExitCode != 0 {
		t.Fatalf("exit %d: %s", got.ExitCode, got.Stderr)
	}
	var status api.Status
	r.RunOutriderJSON(&status, "status")
	if d := status.Discovery; d.State != "connected" || d.Address != authority.Address ||
		!status.Ready {
		t.Errorf("%+v", status)
	}
	parts.Eventually(t, time.Minute, "the service answers", func() bool {
		code, _, err := r.GetThroughEnvoy("/")
		return err == nil && code == 200
	})
	if got := r.RunOutrider("leave"); got.ExitCode != 0 {
		t.Fatalf("exit %d: %s", got.ExitCode, got.Stderr)
	}
	if r.RunOutriderJSON(&status, "status"); len(status.Conditions) > 0 {
		t.Errorf("%+v", status.Conditions)
	}
	if lost := rig.CountLosses(load.Stop(), nil); len(lost) > 0 {
		t.Errorf("lost: %v", lost)
	}
}
