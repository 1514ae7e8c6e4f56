package packaging

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

// faultsFile lists the maintainer scripts that must fail, as SCRIPT-ARGUMENT.
const faultsFile = "/etc/faults"

// withFault returns a maintainer script that fails at its end if faultsFile lists it.
func withFault(script, text string) string {
	const format = `case " $(cat %s 2>/dev/null) " in *" %s-$1 "*) trap 'exit 1' EXIT ;; esac`
	fault := fmt.Sprintf(format, faultsFile, script)
	head, body := "", text
	if strings.HasPrefix(text, "#!") {
		head, body, _ = strings.Cut(text, "\n")
		head += "\n"
	}
	return head + fault + "\n" + body
}

// debWithFaults repacks a deb with scripts that fail on request, and with extra files.
func debWithFaults(t *testing.T, path, target string, extra ...string) {
	t.Helper()
	unpacked := filepath.Join(t.TempDir(), "deb")
	run(t, "dpkg-deb", "-R", path, unpacked)
	for _, script := range []string{"preinst", "postinst", "prerm", "postrm"} {
		file := filepath.Join(unpacked, "DEBIAN", script)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(withFault(script, string(text))), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range extra {
		if err := os.MkdirAll(filepath.Join(unpacked, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(unpacked, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "dpkg-deb", "-Znone", "-b", unpacked, target)
}

// rpmWithFaults rebuilds an rpm with scripts that fail on request.
func rpmWithFaults(t *testing.T, folder, version, target string) {
	t.Helper()
	settings, err := os.ReadFile(filepath.Join(folder+".work", "rpm.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	scripts := t.TempDir()
	text := string(settings)
	for script, path := range map[string]string{
		"pre": folder + ".work/rpm-pre", "post": folder + ".work/rpm-post",
		"preun":  "packaging/rpm/preun",
		"postun": "packaging/rpm/postun", "posttrans": "packaging/rpm/posttrans",
	} {
		source := path
		if !filepath.IsAbs(source) {
			source = filepath.Join(parts.RepositoryRoot(), path)
		}
		content, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		faulty := filepath.Join(scripts, script)
		if err := os.WriteFile(faulty, []byte(withFault(script, string(content))),
			0o600); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text, ": "+path+"\n") {
			t.Fatalf("rpm.yaml names no %s", path)
		}
		text = strings.Replace(text, ": "+path+"\n", ": "+faulty+"\n", 1)
	}
	faulty := filepath.Join(scripts, "rpm.yaml")
	if err := os.WriteFile(faulty, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	nfpm := run(t, filepath.Join(parts.RepositoryRoot(), "scripts", "tool"), "nfpm")
	command := exec.CommandContext(t.Context(), nfpm, "package", "--config", faulty,
		"--packager", "rpm", "--target", target)
	command.Dir = parts.RepositoryRoot()
	command.Env = append(os.Environ(), "VERSION="+version, "ARCH=amd64",
		"SOURCE_DATE_EPOCH="+buildTime)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("nfpm: %v: %s", err, out)
	}
}

// rivalDeb builds an empty package that conflicts with outrider or breaks it (relations). Its
// preinst fails.
func rivalDeb(t *testing.T, name, relations, target string) {
	t.Helper()
	folder := filepath.Join(t.TempDir(), name)
	if err := os.MkdirAll(filepath.Join(folder, "DEBIAN"), 0o755); err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{
		"control": "Package: " + name + "\nVersion: 1\nArchitecture: all\n" +
			"Maintainer: nobody <nobody@localhost>\n" + relations + "Description: rival\n",
		"preinst": "#!/bin/sh\n[ \"$1\" != install ]\n",
	} {
		file = filepath.Join(folder, "DEBIAN", file)
		if err := os.WriteFile(file, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "dpkg-deb", "-b", folder, target)
}
