package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/config"
)

const vmFiles = "istiovm/testdata/web"

func TestImport_Prints(t *testing.T) {
	m := newMachine(t, nil)
	code, out, errors := m.outrider("import", "istio", vmFiles)
	if code != api.ExitDone || !strings.Contains(out, "\nnamespace = \"vm\" ") {
		t.Errorf("exit %d: %s%s", code, out, errors)
	}
	_, text, _ := m.outrider("import", "istio", vmFiles, "--json")
	var shown imported
	if err := json.Unmarshal([]byte(text), &shown); err != nil || shown.Config != out ||
		len(shown.Notes) == 0 {
		t.Errorf("--json: %v: %s", err, text)
	}
	if code, _, errors := m.outrider("import", "istio", t.TempDir()); code != api.ExitRefused ||
		!strings.Contains(errors, "neither cluster.env nor mesh.yaml") {
		t.Errorf("exit %d: %s", code, errors)
	}
}

func TestImport_Apply(t *testing.T) {
	for _, instance := range []string{"", "edge"} {
		m := newMachine(t, nil)
		m.unit.User = "nobody"
		folder, hostsFile, main := filepath.Join(m.dir, "etc"), filepath.Join(m.dir, "hosts"),
			"outrider.toml"
		if instance != "" {
			main = instance + ".toml"
		}
		run := func(more ...string) (int, string, string) {
			return m.outrider(append([]string{"-i", instance, "import", "istio", vmFiles, "--apply"},
				more...)...)
		}
		write := func(path, text string) {
			t.Helper()
			if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
				t.Fatal(err)
			}
		}
		realHosts := hostsFile + ".real"
		if err := os.Symlink(realHosts, hostsFile); err != nil {
			t.Fatal(err)
		}
		write(realHosts, "127.0.0.1 localhost")
		if code, _, errors := run(); code != api.ExitRefused || !strings.Contains(errors, main) {
			t.Errorf("without %s: exit %d: %s", main, code, errors)
		}
		write(filepath.Join(folder, main), "")
		gid := os.Getgid()
		if os.Geteuid() == 0 {
			gid = 4242
		}
		if err := os.Chown(filepath.Join(folder, main), -1, gid); err != nil {
			t.Fatal(err)
		}
		if code, out, errors := run(); code != api.ExitDone || strings.Count(out, ": created\n") != 3 ||
			!strings.Contains(out, ": names added\n+ 203.0.113.10 istiod.istio-system.svc\n") {
			t.Errorf("exit %d: %s%s", code, out, errors)
		}
		hosts, _ := os.ReadFile(hostsFile)
		if want := "127.0.0.1 localhost\n203.0.113.10 istiod.istio-system.svc\n"; string(hosts) != want {
			t.Errorf("hosts: %q", hosts)
		}
		loaded, err := config.Load(config.Options{ConfigDirectory: folder, Instance: instance})
		if err != nil {
			t.Fatal(err)
		}
		token := loaded.Config.Identity.TokenFile
		for path, mode := range map[string]os.FileMode{token: 0o400,
			loaded.Config.Identity.RootCAFile: 0o644, loaded.Files[1]: 0o640,
			hostsFile: 0o640} { // /etc/hosts keeps its mode
			info, err := os.Stat(path)
			if err != nil || info.Mode() != mode ||
				path != hostsFile && groupOf(info) != gid {
				t.Errorf("%s: %v, %v", path, info, err)
			}
		}
		if code, out, _ := run(); code != api.ExitDone || strings.Count(out, ": unchanged\n") != 4 {
			t.Errorf("again: exit %d: %s", code, out)
		}
		if info, err := os.Lstat(hostsFile); err != nil || info.Mode().IsRegular() {
			t.Errorf("the link to hosts was replaced: %v, %v", info, err)
		}
		if err := os.Chmod(token, 0o644); err != nil {
			t.Fatal(err)
		}
		if code, out, _ := run(); code != api.ExitDone ||
			!strings.Contains(out, "istio-token: permissions corrected\n") {
			t.Errorf("a mode has changed: exit %d: %s", code, out)
		}
		if info, err := os.Stat(token); err != nil || info.Mode() != 0o400 ||
			status(info).Uid != nobody {
			t.Errorf("%s: %v, %v", token, info, err)
		}

		write(token, "another")
		if err := os.Remove(loaded.Files[1]); err != nil {
			t.Fatal(err)
		}
		if code, _, errors := run(); code != api.ExitRefused ||
			!strings.Contains(errors, "istio-token exists with") {
			t.Errorf("another token: exit %d: %s", code, errors)
		}
		if _, err := os.Stat(loaded.Files[1]); err == nil {
			t.Error("the configuration was placed beside another token")
		}
		if code, out, _ := run("--replace"); code != api.ExitDone ||
			!strings.Contains(out, "istio-token: replaced\n") {
			t.Errorf("--replace: exit %d: %s", code, out)
		}
		write(hostsFile, "192.0.2.1 istiod.istio-system.svc\n")
		if code, _, errors := run("--replace"); code != api.ExitRefused ||
			!strings.Contains(errors, "is 192.0.2.1 in this file, but 203.0.113.10 in") {
			t.Errorf("another address: exit %d: %s", code, errors)
		}
	}
}

// An import refuses input files that their user has replaced by links, FIFOs or other content, and
// host names that are not istiod's. It does not copy a private key beside the root certificates.
func TestImport_Hostile(t *testing.T) {
	root, err := os.ReadFile(filepath.Join(vmFiles, "root-cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		file, text, want string
		create           func(path string) error
	}{
		"link": {file: "root-cert.pem", want: "is not a regular file", create: func(path string) error {
			return os.Symlink(filepath.Join(filepath.Dir(path), "cluster.env"), path)
		}},
		"fifo": {file: "hosts", want: "is not a regular file",
			create: func(path string) error { return syscall.Mkfifo(path, 0o600) }},
		"token": {file: "istio-token", text: "root:*:1:\n", want: "no JSON Web Token"},
		"root":  {file: "root-cert.pem", text: "root:*:1:\n", want: "root-cert.pem"},
		"name":  {file: "hosts", text: "192.0.2.1 bank.example\n", want: "not a name of istiod"},
		"key": {file: "root-cert.pem",
			text: string(root) + "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"},
	} {
		t.Run(name, func(t *testing.T) {
			m, files := newMachine(t, nil), t.TempDir()
			m.unit.User = "nobody"
			if err := os.CopyFS(files, os.DirFS(vmFiles)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(files, test.file)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if test.create == nil {
				err = os.WriteFile(path, []byte(test.text), 0o600)
			} else {
				err = test.create(path)
			}
			if err != nil {
				t.Fatal(err)
			}
			folder := filepath.Join(m.dir, "etc")
			if err := os.WriteFile(filepath.Join(folder, "outrider.toml"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			code, out, errors := m.outrider("import", "istio", files, "--apply")
			if refused := code == api.ExitRefused; refused != (test.want != "") ||
				!strings.Contains(errors, test.want) {
				t.Errorf("exit %d: %s%s", code, out, errors)
			}
			placed, err := os.ReadFile(filepath.Join(folder, "istio/root-cert.pem"))
			if test.want == "" && (err != nil || !bytes.Equal(placed, root)) ||
				test.want != "" && err == nil {
				t.Errorf("placed: %v: %s", err, placed)
			}
		})
	}
}
