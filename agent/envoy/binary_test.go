package envoy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

func TestInspectARealEnvoy(t *testing.T) {
	path := parts.EnvoyPath(t)
	binary, err := Inspect(t.Context(), LocalRunner{}, path)
	if err != nil {
		t.Fatal(err)
	}
	if binary.Version != "1.40.0" || binary.HotRestartVersion != "11.104" ||
		!strings.HasSuffix(binary.Build, "/BoringSSL") {
		t.Errorf("%+v", binary)
	}
	for _, flag := range []string{"restart-epoch", "config-path", "log-level",
		"skip-hot-restart-parent-stats", "version"} {
		if !binary.Flags[flag] {
			t.Errorf("flag --%s is not known", flag)
		}
	}
	if binary.SupportsStatNameLength() || binary.Flags["ignore"] {
		t.Errorf("flags %v", binary.Flags)
	}
	if len(binary.Flags) < 40 {
		t.Errorf("only %d flags: %v", len(binary.Flags), binary.Flags)
	}
	again, err := Identify(path)
	if err != nil || again != binary.Identity {
		t.Errorf("identity %+v, %v", again, err)
	}
}

// fake is a Runner that returns a fixed result for each flag.
type fake map[string]struct {
	stdout string
	exit   int
	err    error
}

func (f fake) Run(
	_ context.Context, _ string, args []string,
) (stdout, stderr []byte, exit int, err error) {
	answer := f[args[0]]
	return []byte(answer.stdout), []byte("it said why"), answer.exit, answer.err
}

func TestInspectOfWhatIsNoEnvoy(t *testing.T) {
	tests := map[string]struct {
		version string
		exit    int
		err     error
		want    string
	}{
		"something else": {version: "bash 5.2",
			want: `--version does not print an Envoy version: "bash 5.2`},
		"a failure":        {exit: 127, want: `--version exits with 127: "it said why"`},
		"cannot be run":    {err: os.ErrPermission, want: "permission denied"},
		"without an epoch": {version: "envoy  version: abc/1.30.2/Clean/RELEASE/BoringSSL"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			runner := fake{
				"--version":             {stdout: test.version, exit: test.exit, err: test.err},
				"--hot-restart-version": {stdout: "disabled\n"},
				"--help":                {stdout: "USAGE\n\nWhere: \n\n   --max-obj-name-len <uint64_t>\n     see --other\n"},
			}
			binary, err := Inspect(t.Context(), runner, os.Args[0])
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %v, want %s", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if binary.HotRestartVersion != "" || !binary.SupportsStatNameLength() ||
				binary.Flags["other"] || binary.Version != "1.30.2" {
				t.Errorf("%+v", binary)
			}
		})
	}
	if _, err := Inspect(t.Context(), fake{}, "/nonesuch"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

func TestFindSaysWhatWasTried(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	found := filepath.Join(dir, "envoy")
	if err := os.WriteFile(found, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if got, tried := firstExecutable([]string{plain, dir, "/nonesuch", found}); got != found ||
		tried != "" {
		t.Errorf("%q, %s", got, tried)
	}
	linked := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, linked); err != nil {
		t.Fatal(err)
	}
	_, tried := firstExecutable([]string{plain, dir, "/nonesuch", "/nonesuch",
		filepath.Join(linked, filepath.Base(plain))})
	want := plain + " (is not executable), " + dir + " (is a folder), /nonesuch"
	if tried != want {
		t.Errorf("got  %s\nwant %s", tried, want)
	}
	if got, err := Find(found); got != found || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Find(plain); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(),
		`[envoy] binary = "`+plain+`"`) {
		t.Errorf("got %v", err)
	}
	t.Setenv("PATH", dir+":.")
	if got, err := Find(""); err != nil || got == "envoy" {
		t.Errorf("%q, %v", got, err)
	}
}

// The selected Envoy precedes all others. The result names the target of the link, so a later
// change of the link has no effect.
func TestFindAt_PrefersTheSelectedEnvoy(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"envoy", "envoy-1.2.3"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	link, chosen := filepath.Join(dir, "link"), filepath.Join(dir, "envoy-1.2.3")
	if got, err := FindAt(link, dir); got == link || got == chosen || err != nil {
		t.Errorf("without a link: %q, %v", got, err)
	}
	if err := os.Symlink("envoy-1.2.3", link); err != nil {
		t.Fatal(err)
	}
	if got, err := FindAt(link, dir); got != chosen || err != nil {
		t.Errorf("%q, %v; want %q", got, err, chosen)
	}
}

// If no Envoy is found, the error lists the installed versions, newest first.
func TestFindAt_CureKnowsWhatIsInstalled(t *testing.T) {
	lib := t.TempDir()
	for _, step := range []struct{ installed, fix string }{
		{"", "outrider envoy install"},
		{"1.9.9", "outrider envoy use 1.9.9"},
		{"1.40.0", "outrider envoy use 1.40.0"},
	} {
		if step.installed != "" {
			path := InstalledPath(lib, step.installed)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if got := installHint(lib); !strings.HasSuffix(got, "run \""+step.fix+"\" as root") {
			t.Errorf("%s; want %q", got, step.fix)
		}
	}
}

func TestLocalTellsSignals(t *testing.T) {
	_, stderr, exit, err := LocalRunner{}.Run(t.Context(), "/bin/sh",
		[]string{"-c", "echo no >&2; kill -9 $$"})
	if exit != 128+9 || err != nil || string(stderr) != "no\n" {
		t.Errorf("exit %d, %v, %q", exit, err, stderr)
	}
	if _, _, _, err := (LocalRunner{}).Run(t.Context(), "/nonesuch", nil); !errors.Is(err,
		os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, _, err := (LocalRunner{}).Run(ctx, "/bin/sh",
		[]string{"-c", "exit 0"}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("got %v", err)
	}
}
