package packaging

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/machine"
	"outrider.org/outrider/scripts/parts"
)

const (
	annotatedVersion = "0.9.0"
	annotatedPlace   = "/opt/annotated"
	quietly          = "DEBIAN_FRONTEND=noninteractive dpkg -i " // without interaction
)

// annotated builds packages whose outrider.toml is the annotated reference etc/outrider.toml, as in
// earlier releases.
func annotated(t *testing.T) string {
	t.Helper()
	shared.old(t) // builds the packed programs
	work, dist := filepath.Join(shared.folder, "old.work"), filepath.Join(shared.folder,
		"annotated")
	if err := os.MkdirAll(dist, 0o755); err != nil {
		t.Fatal(err)
	}
	nfpm := run(t, filepath.Join(parts.RepositoryRoot(), "scripts", "tool"), "nfpm")
	for _, packager := range []string{"deb", "rpm"} {
		text, err := os.ReadFile(filepath.Join(work, packager+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		before := strings.ReplaceAll(string(text),
			"src: packaging/outrider.toml", "src: etc/outrider.toml")
		before = strings.ReplaceAll(before, "compression: gzip", "compression: zstd")
		file := filepath.Join(dist, packager+".yaml")
		if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		command := exec.CommandContext(t.Context(), nfpm, "package", "--config", file,
			"--packager", packager, "--target", dist)
		command.Dir = parts.RepositoryRoot()
		command.Env = append(os.Environ(), "VERSION="+annotatedVersion, "ARCH=amd64",
			"SOURCE_DATE_EPOCH="+buildTime)
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("nfpm: %v: %s", err, out)
		}
	}
	return dist
}

// An upgrade replaces an outrider.toml with annotations by a stub if the administrator has not
// modified it. Otherwise dpkg asks and keeps the modified file; at the next upgrade it does not
// ask.
func TestConffile_FromTheAnnotatedFileToTheStub(t *testing.T) {
	t.Parallel()
	h := &host{t: t, Machine: machine.BootForTest(t, machine.Options{BindMounts: []string{
		annotated(t) + ":" + annotatedPlace, shared.old(t) + ":" + oldPlace,
		shared.new(t) + ":" + newPlace}})}
	stub, err := os.ReadFile(filepath.Join(parts.RepositoryRoot(), "packaging", "outrider.toml"))
	if err != nil {
		t.Fatal(err)
	}
	isStub := func(path string) {
		t.Helper()
		h.expect(strings.TrimSpace(string(stub)), "cat "+path)
	}
	const (
		conffile = "/etc/outrider/outrider.toml"
		mine     = "echo '# mine' >>" + conffile
		kept     = `head -n 1 ` + conffile + ` | cut -c 1-38; tail -n 1 ` + conffile
		isKept   = "# /etc/outrider/outrider.toml: the con\n# mine"
		rights   = "stat -c '%a %U %G' " + conffile
	)
	for _, changed := range []bool{false, true} {
		t.Run(fmt.Sprintf("deb/changed=%v", changed), func(t *testing.T) {
			h := &host{t: t, Machine: h.Machine}
			h.script(quietly + deb(annotatedPlace, annotatedVersion) + " </dev/null")
			if changed {
				h.script(mine)
				asked, err := h.Run(t.Context(), "sh", "-c", quietly+deb(oldPlace, oldVersion)+
					" </dev/null")
				if err == nil || !strings.Contains(asked, "Configuration file '"+conffile+"'") {
					t.Errorf("dpkg does not ask: %v: %s", err, asked)
				}
				h.script(quietly + "--force-confold " + deb(oldPlace, oldVersion) + " </dev/null")
				// dpkg must not ask, since it could not read an answer.
				h.script(quietly + deb(newPlace, newVersion) + " </dev/null")
				h.expect(isKept, kept)
			} else {
				h.script(quietly + deb(oldPlace, oldVersion) + " </dev/null")
				isStub(conffile)
				h.expect("", "ls "+conffile+".* 2>/dev/null || true")
			}
			h.expect("640 root outrider", rights)
			h.script("dpkg -P outrider")
		})
		t.Run(fmt.Sprintf("rpm/changed=%v", changed), func(t *testing.T) {
			h := &host{t: t, Machine: h.Machine}
			h.script("rpm --force-debian -i --nodeps " + rpm(annotatedPlace, annotatedVersion))
			if changed {
				h.script(mine)
			}
			h.script("rpm --force-debian -U --nodeps " + rpm(oldPlace, oldVersion))
			if changed {
				h.expect(isKept, kept)
				isStub(conffile + ".rpmnew")
				h.script("rm " + conffile + ".rpmnew")
			} else {
				isStub(conffile)
			}
			h.script("rpm --force-debian -U --nodeps " + rpm(newPlace, newVersion))
			h.expect("", "ls "+conffile+".* 2>/dev/null || true")
			h.expect("640 root outrider", rights)
			h.script("rpm --force-debian -e --nodeps outrider; rm -rf /etc/outrider")
		})
	}
}
