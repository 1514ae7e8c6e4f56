package main

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
)

// command runs a subcommand of the program. It returns its output and its messages.
func command(arguments ...string) (out, why string, err error) {
	program := exec.Command(os.Args[0], arguments...)
	program.Env = append(os.Environ(), "OUTRIDER_DISCOVERYD=1")
	var errors strings.Builder
	program.Stderr = &errors
	output, err := program.Output()
	return string(output), errors.String(), err
}

// TestToken_FirstCertificate: with a join token, an agent can request certificates for the service
// account in the token, several times. join_not_before then withdraws the token.
func TestToken_FirstCertificate(t *testing.T) {
	t.Parallel()
	root := pkitest.NewAuthority(t, "root", nil)
	s := startSigning(t, root, root)
	agent := s.agent()
	if err := os.Remove(agent.TokenFile); err != nil {
		t.Fatal(err)
	}
	key := pkitest.NewKey(t)
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	s.put("join.key", pkitest.KeyPEM(t, key))
	s.put("join.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
	issue := func(account string) {
		t.Helper()
		token, about, err := command("token", "--service-account", account, "--ttl", "30m", "--key",
			filepath.Join(s.folder, "join.key"))
		if err != nil || !strings.Contains(about, "for service account "+account) {
			t.Fatalf("%v: %s", err, about)
		}
		s.put("token", []byte(token))
	}
	s.logs("cannot verify join tokens") // the key file did not exist when the program started
	issue("default/other")
	if _, err := agent.Issue(t.Context(), nil, nil); err == nil ||
		!strings.Contains(err.Error(), "another identity") {
		t.Errorf("for another service account: %v", err)
	}
	issue("default/web")
	for range 2 {
		issued, err := agent.Issue(t.Context(), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		s.logs(`"serial":"` + issued.Pair.Leaf().SerialNumber.Text(16))
	}
	parts.EventuallyWithObservation(t, time.Minute, "each use is a line", func() (bool, string) {
		log := logOf(s.file)
		// two certificates with the token for default/web, one with that for default/other
		return strings.Count(log, `"msg":"accepted join token"`) == 3, log
	})
	s.logs(`"credential":"join token `)
	text, err := os.ReadFile(s.file)
	if err != nil {
		t.Fatal(err)
	}
	withdrawn := time.Now().Add(time.Minute).UTC().Format(`"2006-01-02T15:04:05Z"`)
	s.put("discoveryd.toml", []byte(strings.Replace(string(text), "join_key_file",
		"join_not_before = "+withdrawn+"\njoin_key_file", 1)))
	parts.EventuallyWithObservation(t, time.Minute, "the token is withdrawn", func() (bool, string) {
		_, err := agent.Issue(t.Context(), nil, nil)
		return err != nil && strings.Contains(err.Error(), "join_not_before"), logOf(s.file)
	})
	s.secretsAreNowhere(root.Key)
}

func TestToken_Usage(t *testing.T) {
	for _, arguments := range [][]string{{}, {"--service-account", "a/b"}, {"--key", "x"},
		{"--service-account", "a/b", "--key", "/does/not/exist"}, {"--what"}} {
		if out, why, err := command(append([]string{"token"}, arguments...)...); err == nil ||
			out != "" || why == "" {
			t.Errorf("%v: %v, %q, %q", arguments, err, out, why)
		}
	}
}

// The configuration that "ca init" prints is valid with the files that it writes.
func TestCAInit(t *testing.T) {
	folder := t.TempDir()
	said, _, err := command("ca", "init", filepath.Join(folder, "ca"))
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	_, text, _ := strings.Cut(said, "ca.toml:\n")
	text, _, found := strings.Cut(text, "\nThen:")
	if !found {
		t.Fatalf("no configuration in %s", said)
	}
	file := filepath.Join(folder, "discoveryd.toml")
	write(t, file, text)
	if said, why, err := command("--config", file, "--check"); err != nil {
		t.Errorf("%v: %s%s", err, said, why)
	}
	if said, why, err := command("ca", "init", filepath.Join(folder, "ca")); err == nil ||
		!strings.Contains(why, "is not empty") {
		t.Errorf("a second time: %v %s%s", err, said, why)
	}
}
