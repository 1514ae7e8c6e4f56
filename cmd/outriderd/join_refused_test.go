package main_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// A join with a wrong argument, token or configuration is refused with the fix. It changes no file,
// and starts no epoch.
func TestJoin_RefusesWithoutAChange(t *testing.T) {
	t.Parallel()
	j := newJoinable(t, "[reload]\nwatch = false\n")
	good := j.token("shop/web", "join", time.Hour)
	j.WriteFile("good", j.read(good))
	good = filepath.Join(j.Dir, "good")
	j.token("shop/web", "other", time.Hour)
	j.WriteFile("foreign", j.read(filepath.Join(j.Dir, "token")))
	silent := fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))
	root, set := filepath.Join(j.ca, "root.pem"), filepath.Join(j.Dir, "conf.d/50-test.toml")
	now := time.Now()
	for _, test := range []struct {
		name, config string
		claims       map[string]any // claims of a forged token
		arguments    []string       // address, token and root, if not the default ones
		want         string
	}{
		{"expired", "", map[string]any{"exp": now.Add(-time.Hour).Unix()}, nil,
			"; get a new token, or set the clock"},
		{"clock behind", "", map[string]any{"iat": now.Add(3 * time.Hour).Unix()}, nil,
			"; set the clock (timedatectl set-ntp true)"},
		{"audience", "", map[string]any{"aud": []string{"other"}}, nil,
			`the token is for audience "other", not "istio-ca"; get one with`},
		{"subject", "", map[string]any{"sub": "somebody"}, nil, "not for a service account; get one"},
		{"no signature", "", map[string]any{}, nil, "the server does not accept the token: "},
		{"foreign key", "", nil, []string{j.address, filepath.Join(j.Dir, "foreign"), root},
			"the server does not accept the token: token refused: no key of [auth] join_key_file has " +
				"signed"},
		{"no token", "", nil, []string{j.address, set, root}, set + ": the file has no JSON Web Token"},
		{"no root", "", nil, []string{j.address, good, set}, set + ": "},
		{"missing root", "", nil, []string{j.address, good, set + ".none"}, "no such file"},
		{"other root", "", nil, []string{j.address, good, filepath.Join(j.ca+"2", "root.pem")},
			"specify the root certificates of this server with --ca"},
		{"silent", "", nil, []string{silent, good, root},
			silent + " does not answer: dial tcp " + silent + ": connect: connection refused; check"},
		{"no TLS", "", nil, []string{fmt.Sprintf("127.0.0.1:%d", j.Ports.Backend), good, root},
			"answers without TLS; specify the server's port with TLS (15012)"},
		{"other name", "", nil, []string{j.address, good, root, "--server-name", "other.test"},
			"not for other.test; use one of these as ADDRESS, or specify one with --server-name"},
		{"other group", "", nil, []string{j.address, good, root, "--group", "other/web"},
			"--group other/web is not in the namespace of the token, shop; "},
		{"identity", "[identity]\nprovider = \"spire\"\n", nil, nil, set + ":2:1: identity.provider: " +
			"is set already, and outrider join sets which mesh the host is in; remove the key"},
		{"discovery", "\n[discovery]\naddress = \"" + silent + "\"\n", nil, nil,
			set + ":3:1: discovery.address: is set already"},
		{"service account", "[node]\nservice_account = \"db\"\n", nil, nil, set + `:2:1: ` +
			`node.service_account: "db" is not the service account of the token, "web"; use a token`},
		{"invalid", "[node]\nservice_acount = \"db\"\n", nil, nil,
			"the configuration is not valid; correct it first:\n" + set + ":2:1: "},
		{"trust domain", "[node]\ntrust_domain = \"other.test\"\n", nil, nil,
			"does not certify spiffe://other.test/ns/shop/sa/web: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			j.SetTOML(test.config)
			token := good
			if test.claims != nil {
				token = j.forged(test.claims)
			}
			if test.arguments == nil {
				test.arguments = []string{j.address, token, root}
			}
			before, epoch := j.files(), current(t, j.Rig)
			got := j.RunOutrider(append([]string{"join", test.arguments[0], "--token", test.arguments[1],
				"--ca", test.arguments[2]}, test.arguments[3:]...)...)
			if got.ExitCode != api.ExitRefused || !strings.Contains(got.Stderr, test.want) {
				t.Errorf("exit %d: %s\nwant %s", got.ExitCode, got.Stderr, test.want)
			}
			if after := j.files(); fmt.Sprint(before) != fmt.Sprint(after) {
				t.Errorf("files %v, before the join %v", after, before)
			}
			if now := current(t, j.Rig); now.PID != epoch.PID {
				t.Errorf("epoch %d serves, before the join %d", now.Number, epoch.Number)
			}
		})
	}
	j.SetTOML("")
}

// The server issues certificates, but refuses them for xDS. The join is undone after its time-out,
// and also if it is interrupted.
func TestJoin_IsUndone(t *testing.T) {
	t.Parallel()
	j := newJoinable(t, "")
	token, before := j.token("shop/web", "join", time.Hour), j.files()
	load := j.StartLoad(0.1)
	arguments := []string{"join", j.closed, "--token", token, "--ca",
		filepath.Join(j.ca, "root.pem")}
	got := j.RunOutrider(append(arguments, "--timeout", "20s")...)
	if got.ExitCode != api.ExitRefused || !strings.Contains(got.Stderr,
		"not in the mesh after 20s\n") ||
		!strings.Contains(got.Stderr, "authentication required: present a token") ||
		!strings.Contains(got.Stderr, "the join was undone: files and agent are as before") {
		t.Errorf("exit %d: %s", got.ExitCode, got.Stderr)
	}
	j.isAsBefore(before)

	command := exec.Command(j.Programs.Path("outrider"), append([]string{"--socket",
		filepath.Join(j.Dir, "run", "outrider.sock")}, arguments...)...)
	var said strings.Builder
	command.Stderr = &said
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	parts.Eventually(t, time.Minute, "the files are written", func() bool {
		return len(j.files()) > len(before)+2
	})
	_ = command.Process.Signal(syscall.SIGINT)
	if err := command.Wait(); err == nil ||
		!strings.Contains(said.String(), "interrupted\nthe join was undone") {
		t.Errorf("%v: %s", err, said.String())
	}
	j.isAsBefore(before)
	if lost := rig.CountLosses(load.Stop(), nil); len(lost) > 0 {
		t.Errorf("lost: %v", lost)
	}
}

// isAsBefore checks that the configuration files and the agent are as they were before a join.
func (j *joinable) isAsBefore(before map[string]string) {
	j.t.Helper()
	if after := j.files(); fmt.Sprint(before) != fmt.Sprint(after) {
		j.t.Errorf("files %v, before the join %v", after, before)
	}
	// The epoch of the undone join occupied the port of the admin interface. A repair, another
	// epoch that the agent starts by itself, restores the interface.
	parts.EventuallyWithObservation(j.t, time.Minute, "the agent is as before", func() (bool, string) {
		s := j.status()
		return s.Discovery.State == "embedded" && len(s.Identities) == 0 && s.Ready &&
			len(s.Conditions) == 0, fmt.Sprintf("%+v", s)
	})
}

// A host has joined, but has no valid certificate, and the server no longer accepts its token. The
// status reports that, and another join with a new token succeeds.
func TestJoin_AgainWithoutCertificate(t *testing.T) {
	t.Parallel()
	j := newJoinable(t, "")
	if got := j.join(j.token("shop/web", "join", time.Hour), "--group",
		"shop/web"); got.ExitCode != 0 {
		t.Fatalf("exit %d: %s", got.ExitCode, got.Stderr)
	}
	d := j.Daemon()
	_ = d.Process.Kill()
	d.Wait(t, time.Minute)
	j.WriteFile("join.pub", j.read(filepath.Join(j.Dir, "other.pub")))
	j.Start()
	parts.EventuallyWithObservation(t, time.Minute, "the agent asks for a new token", func() (bool, string) {
		got := j.RunOutrider("status")
		return strings.Contains(got.Stdout, `or run "outrider join" with a new token`), got.Stdout + got.Stderr
	})
	if got := j.join(j.token("shop/web", "join", time.Hour)); got.ExitCode != api.ExitRefused ||
		!strings.Contains(got.Stderr, "no key of [auth] join_key_file") {
		t.Errorf("exit %d: %s", got.ExitCode, got.Stderr)
	}
	var joined struct {
		SPIFFEID string `json:"spiffe_id"`
	}
	j.RunOutriderJSON(&joined, "join", j.address, "--token", j.token("shop/web", "other", time.Hour),
		"--ca",
		filepath.Join(j.ca, "root.pem"))
	if group := `workload_group = "web"`; !strings.Contains(j.read(
		filepath.Join(j.Dir, "conf.d/90-join.toml")), group) {
		t.Errorf("the drop-in has no %s", group)
	}
}

// A host was off until its stored certificate expired. It reports that and how to join again, does
// not enter the mesh, and joins with a new token.
func TestJoin_AgainAfterExpiryWhileOff(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	j := newJoinable(t, fmt.Sprintf("[identity]\nttl = %q\n", ttl))
	j.WriteFile("credentials/seal", strings.Repeat("s", 32))
	j.Environment = []string{"CREDENTIALS_DIRECTORY=" + filepath.Join(j.Dir, "credentials")}
	stop := func() {
		t.Helper()
		d := j.Daemon()
		_ = d.Process.Signal(syscall.SIGTERM)
		d.Wait(t, time.Minute)
	}
	stop()
	j.StartReady()
	if got := j.join(j.token("shop/web", "join", time.Hour)); got.ExitCode != 0 {
		t.Fatalf("exit %d: %s", got.ExitCode, got.Stderr)
	}
	if kept := j.files()[filepath.Join(j.Dir, "join", "token")]; kept != "" {
		t.Errorf("the join keeps the token: %s", kept)
	}
	stop()
	<-time.After(ttl) // all certificates of the stopped agent have expired
	j.Start()
	parts.EventuallyWithObservation(t, 2*time.Minute, "expiry and cure are reported", func() (bool, string) {
		got := j.RunOutrider("status")
		for _, want := range []string{"EXPIRED on ", "error certificate-expired", "expired on ",
			`run "outrider join" with a new token`} {
			if !strings.Contains(strings.Join(strings.Fields(got.Stdout), " "), want) {
				return false, got.Stdout + got.Stderr
			}
		}
		return true, ""
	})
	t.Log(j.RunOutrider("status").Stdout)
	if s := j.status(); s.Discovery.State == "connected" {
		t.Errorf("in the mesh with an expired certificate: %+v", s)
	}
	if got := j.join(j.token("shop/web", "join", time.Hour)); got.ExitCode != 0 {
		t.Fatalf("exit %d: %s", got.ExitCode, got.Stderr)
	}
	parts.EventuallyWithObservation(t, time.Minute, "the host is in the mesh", func() (bool, string) {
		s := j.status()
		return s.Ready && s.Discovery.State == "connected" && len(s.Conditions) == 0,
			fmt.Sprintf("%+v", s)
	})
}
