package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
)

// TestProgram_ReloadsInPlace replaces the certificate, changes a live key and a key that needs a
// restart, and writes an invalid file. The program applies what it can without a restart, and
// continues with its configuration after the invalid file.
func TestProgram_ReloadsInPlace(t *testing.T) {
	directory := parts.ShortDir(t)
	secure, monitoring := parts.FreePort(t), parts.FreePort(t)
	authority := pkitest.NewAuthority(t, "root", nil)
	issue := func(name string) {
		template := pkitest.LeafTemplate(name, time.Hour)
		template.DNSNames = []string{"discoveryd.test"}
		chain, key := authority.Issue(t, template)
		write(t, filepath.Join(directory, "key"), string(key))
		write(t, filepath.Join(directory, "cert"), string(chain))
	}
	issue("first")
	file := filepath.Join(directory, "discoveryd.toml")
	text := fmt.Sprintf(`domain = "a.test"
paths.state_dir = "state"
log.level = "info"
[listen]
plaintext = ""
tls = "127.0.0.1:%d"
monitoring = "127.0.0.1:%d"
[tls]
cert_file = "cert"
key_file = "key"
[auth]
require = "none"
[[source]]
paths = ["."]
`, secure, monitoring)
	write(t, file, text)
	program, _ := start(t, file, monitoring)
	roots := x509.NewCertPool()
	roots.AddCert(authority.Certificate)
	shows := func(name string) {
		t.Helper()
		parts.EventuallyWithObservation(t, time.Minute, name, func() (bool, string) {
			connection, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", secure), &tls.Config{
				RootCAs: roots, ServerName: "discoveryd.test", NextProtos: []string{"h2"}})
			if err != nil {
				return false, err.Error()
			}
			defer func() { _ = connection.Close() }()
			subject := connection.ConnectionState().PeerCertificates[0].Subject.String()
			return strings.Contains(subject, name), subject
		})
	}
	logs := func(words ...string) {
		t.Helper()
		parts.EventuallyWithObservation(t, time.Minute, strings.Join(words, " "), func() (bool, string) {
			text := logOf(file)
			for _, word := range words {
				if !strings.Contains(text, word) {
					return false, text
				}
			}
			return true, ""
		})
	}
	shows("first")
	issue("second")
	shows("second")

	write(t, file, strings.NewReplacer("a.test", "b.test", `"info"`, `"debug"`).Replace(text))
	logs(`"key":"log.level","old":"\"info\"","new":"\"debug\"","effect":"live"`,
		"changes of domain wait for the next start")
	write(t, file, text+"[unknown]\n")
	logs("the configuration was refused", file+":15:1: unknown: there is no such table")
	reload := func() (string, error) {
		command := exec.Command(os.Args[0], "reload")
		command.Env = program.Env
		said, err := command.CombinedOutput()
		return string(said), err
	}
	if said, err := reload(); err == nil || !strings.Contains(said, "reload refused") ||
		!strings.Contains(said, file+":15:1: unknown: there is no such table") {
		t.Errorf("a reload of an invalid configuration: %v, %s", err, said)
	}
	write(t, file, text)
	if said, err := reload(); err != nil || said != "" {
		t.Errorf("reload: %v, %s", err, said)
	}
	const changed = `"key":"log.level","old":"\"debug\"","new":"\"info\""`
	if log := logOf(file); !strings.Contains(log, changed) {
		t.Errorf("the reload returned before it was done: %s", log)
	}
	if err := program.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	logs("no longer: the configuration was refused")
	if err := syscall.Kill(program.Process.Pid, 0); err != nil {
		t.Errorf("the program does not run: %v", err)
	}
}
