package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/packaging/examples"
	"outrider.org/outrider/scripts/parts"
)

// Linters find no errors. Exceptions are explained in packaging/deb/lintian-overrides and
// packaging/rpm/rpmlint.toml.
func TestLint(t *testing.T) {
	folder := shared.old(t)
	t.Run("lintian", func(t *testing.T) {
		run(t, "lintian", "--allow-root", "--fail-on", "error,warning", deb(folder, oldVersion))
	})
	t.Run("rpmlint", func(t *testing.T) {
		// rpmlint unpacks with cpio. Paths in the rpm begin with a slash, which rpm ignores, so
		// unpack into a directory and not into /.
		shim := t.TempDir()
		if err := os.WriteFile(filepath.Join(shim, "cpio"),
			[]byte("#!/bin/sh\nexec /usr/bin/cpio --no-absolute-filenames \"$@\"\n"),
			0o755); err != nil {
			t.Fatal(err)
		}
		command := exec.CommandContext(t.Context(), "rpmlint", "-c",
			filepath.Join(parts.RepositoryRoot(),
				"packaging", "rpm", "rpmlint.toml"), rpm(folder, oldVersion))
		command.Env = append(os.Environ(), "PATH="+shim+":"+os.Getenv("PATH"))
		out, err := command.CombinedOutput()
		if err != nil || !strings.Contains(string(out), " 0 errors,") {
			t.Errorf("rpmlint: %v\n%s", err, out)
		}
	})
}

// examplesPlace is the folder where the packages install packaging/examples.
const examplesPlace = "/usr/share/doc/outrider/examples"

// referencePlace is the folder where the packages install the reference of the kinds in mesh.d.
const referencePlace = "/usr/share/doc/outrider/reference"

// installed maps paths to modes and owners. Other files are 0644 root:root.
var installed = map[string]string{
	"/etc/outrider":                            "drwxr-xr-x root root",
	"/etc/outrider/conf.d":                     "drwxr-xr-x root root",
	"/etc/outrider/mesh.d":                     "drwxr-xr-x root root",
	"/etc/outrider/outrider.toml":              "-rw-r----- root outrider",
	"/usr/bin/outrider":                        "-rwxr-xr-x root root",
	"/usr/libexec/outrider":                    "drwxr-xr-x root root",
	"/usr/libexec/outrider/outrider-keeper":    "-rwxr-xr-x root root",
	"/usr/libexec/outrider/outrider-capture":   "-rwxr-xr-x root root",
	"/usr/libexec/outrider/outrider-bootstrap": "-rwxr-xr-x root root",
	"/usr/libexec/outrider/outrider-probe":     "-rwxr-xr-x root root",
	"/usr/libexec/outrider/outrider-seal":      "-rwxr-xr-x root root",
	"/usr/sbin/outriderd":                      "-rwxr-xr-x root root",
	"/usr/share/doc/outrider":                  "drwxr-xr-x root root",
	"/usr/share/licenses/outrider":             "drwxr-xr-x root root",
	"/usr/share/outrider":                      "drwxr-xr-x root root",
	"/usr/share/outrider/grafana":              "drwxr-xr-x root root",
	"/usr/share/outrider/prometheus":           "drwxr-xr-x root root",
}

func TestContents_Rpm(t *testing.T) {
	path := rpm(shared.old(t), oldVersion)
	listed := map[string]string{}
	for line := range strings.Lines(run(t, "rpm", "-qp", "--qf",
		"[%{FILEMODES:perms} %{FILEUSERNAME} %{FILEGROUPNAME} %{FILENAMES}\n]", path)) {
		owner, name, _ := strings.Cut(strings.TrimSpace(line), " /")
		listed["/"+name] = owner
	}
	for name, want := range installed {
		if listed[name] != want {
			t.Errorf("%s is %q, want %q", name, listed[name], want)
		}
	}
	for name, got := range listed {
		if installed[name] == "" && got != "-rw-r--r-- root root" &&
			!(strings.HasPrefix(name, examplesPlace) && got == "drwxr-xr-x root root") &&
			name != referencePlace {
			t.Errorf("%s is %s", name, got)
		}
	}
	for _, name := range files(t) {
		if listed[name] == "" {
			t.Errorf("%s is missing", name)
		}
	}
	if got := run(t, "rpm", "-qp", "-c",
		path); got != "/etc/logrotate.d/outrider\n/etc/outrider/outrider.toml" {
		t.Errorf("configuration: %s", got)
	}
	if got := run(t, "rpm", "-qp", "-d", path); !strings.Contains(got,
		"/usr/share/man/man8/outriderd.8.gz") {
		t.Errorf("documents: %s", got)
	}
}

// The packages contain exactly the examples that `outrider example` shows and whose tests run.
func TestContents_ExamplesAreTested(t *testing.T) {
	unpacked := t.TempDir()
	run(t, "dpkg-deb", "-x", deb(shared.old(t), oldVersion), unpacked)
	want := map[string]string{}
	for _, example := range examples.AllExamples() {
		for _, file := range example.Files {
			want[filepath.Join(examplesPlace, example.Name, file.Path)] = file.Text
		}
	}
	got := map[string]string{}
	root := filepath.Join(unpacked, examplesPlace)
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		got[strings.TrimPrefix(path, unpacked)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-embedded +installed:\n%s", diff)
	}
}

// The conffile has no settings and names its documentation.
func TestContents_ConfigurationIsAStub(t *testing.T) {
	unpacked := t.TempDir()
	run(t, "dpkg-deb", "-x", deb(shared.old(t), oldVersion), unpacked)
	stub, err := os.ReadFile(filepath.Join(unpacked, "etc/outrider/outrider.toml"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(stub)) {
		if !strings.HasPrefix(line, "#") {
			t.Errorf("it says something: %s", line)
		}
	}
	for _, want := range []string{"/usr/share/doc/outrider/outrider.toml",
		"outrider config defaults"} {
		if !strings.Contains(string(stub), want) {
			t.Errorf("it does not name %s:\n%s", want, stub)
		}
	}
	reference, err := os.ReadFile(filepath.Join(unpacked, "usr/share/doc/outrider/outrider.toml"))
	if diff := cmp.Diff(config.DefaultsTOML(), string(reference)); err != nil || diff != "" {
		t.Errorf("the document: %v -defaults +document:\n%s", err, diff)
	}
}

func TestContents_Deb(t *testing.T) {
	path := deb(shared.old(t), oldVersion)
	listed := map[string]bool{}
	for line := range strings.Lines(run(t, "dpkg-deb", "-c", path)) {
		fields := strings.Fields(line)
		name := strings.ReplaceAll(fields[5], `\\`, `\`) // undo tar's quoting
		listed[strings.TrimSuffix(strings.TrimPrefix(name, "."), "/")] = true
	}
	for _, name := range append(files(t), "/usr/share/doc/outrider/copyright",
		"/usr/share/doc/outrider/changelog.Debian.gz",
		"/usr/share/doc/outrider/README.Debian", "/usr/share/zsh/vendor-completions/_outrider",
		"/usr/share/apparmor/extra-profiles/outrider") {
		if !listed[name] {
			t.Errorf("%s is missing", name)
		}
	}
}

// files returns the files that both packages copy from the sources.
func files(t *testing.T) []string {
	t.Helper()
	names := []string{"/usr/lib/systemd/system-preset/90-outrider.preset",
		"/usr/lib/sysusers.d/outrider.conf", "/usr/lib/tmpfiles.d/outrider.conf",
		"/usr/lib/sysctl.d/60-outrider.conf",
		"/usr/lib/systemd/catalog/outrider.catalog",
		"/usr/share/dbus-1/system.d/org.outrider.Agent1.conf",
		"/usr/share/polkit-1/actions/org.outrider.agent1.policy",
		"/usr/share/polkit-1/rules.d/50-outrider.rules",
		"/usr/share/doc/outrider/NOTICES.gz", "/usr/share/doc/outrider/outrider.toml",
		referencePlace + "/index.html", referencePlace + "/Gateway.html",
		"/usr/share/doc/outrider/limits.md", "/usr/share/doc/outrider/tproxy.conf",
		"/usr/share/bash-completion/completions/outrider",
		"/usr/share/fish/vendor_completions.d/outrider.fish"}
	for _, example := range examples.AllExamples() {
		for _, file := range example.Files {
			names = append(names, examplesPlace+"/"+example.Name+"/"+file.Path)
		}
	}
	for pattern, place := range map[string]string{
		"units/*":                         "/usr/lib/systemd/system/",
		"packaging/dbus/interfaces/*.xml": "/usr/share/dbus-1/interfaces/",
		"packaging/prometheus/*.yml":      "/usr/share/outrider/prometheus/",
		"packaging/grafana/*.json":        "/usr/share/outrider/grafana/",
		"packaging/man/*.1":               "/usr/share/man/man1/",
		"packaging/man/*.5":               "/usr/share/man/man5/",
		"packaging/man/*.8":               "/usr/share/man/man8/",
	} {
		sources, err := filepath.Glob(filepath.Join(parts.RepositoryRoot(), pattern))
		if err != nil || len(sources) == 0 {
			t.Fatalf("%s: nothing there (%v)", pattern, err)
		}
		for _, source := range sources {
			name := place + filepath.Base(source)
			if strings.Contains(name, "discoveryd") {
				continue // belongs to the other package
			}
			if strings.Contains(pattern, "/man/") {
				name += ".gz"
			}
			names = append(names, name)
		}
	}
	return names
}

// No scriptlet restarts or stops the keeper's units outrider-envoy, which would end Envoy.
func TestScriptlets_LeaveEnvoyAlone(t *testing.T) {
	folder := shared.old(t)
	control := t.TempDir()
	run(t, "dpkg-deb", "-e", deb(folder, oldVersion), control)
	scripts := run(t, "rpm", "-qp", "--scripts", rpm(folder, oldVersion))
	for _, name := range []string{"preinst", "postinst", "prerm", "postrm"} {
		text, err := os.ReadFile(filepath.Join(control, name))
		if err != nil {
			t.Fatal(err)
		}
		run(t, "sh", "-n", filepath.Join(control, name))
		scripts += string(text)
	}
	if found := regexp.MustCompile(`(?m)^[^#\n]*\b(restart|stop)\b[^\n]*outrider-envoy.*`).
		FindString(scripts); found != "" {
		t.Errorf("a script has: %s", found)
	}
	users, err := os.ReadFile(filepath.Join(parts.RepositoryRoot(), "packaging", "sysusers.d",
		"outrider.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(scripts, string(users)) {
		t.Error("the rpm's preinstall does not make the users of sysusers.d/outrider.conf")
	}
}

// needrestart skips outrider-envoy.service and nothing else.
func TestNeedrestart(t *testing.T) {
	const script = `our %nrconf; defined(do $ARGV[0]) or die $@; for $unit (@ARGV[1..$#ARGV]) {
		my @matching = grep { $unit =~ /$_/ && !$nrconf{override_rc}{$_} } keys %{$nrconf{override_rc}}; print @matching ? "keep " : "restart " }`
	got := run(t, "perl", "-e", script, filepath.Join(parts.RepositoryRoot(), "packaging",
		"needrestart",
		"outrider.conf"),
		"outrider-envoy.service", "outrider-envoy@edge.service", "outrider.service",
		"outrider@edge.service")
	if got != "keep keep restart restart" {
		t.Error(got)
	}
}
