package packaging

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

// seals runs outrider-seal as several boots do. A seal is a credential that contains the keys for
// the agent's stored secrets, and that systemd-creds has encrypted. A fake systemd-creds fails to
// decrypt as many times as the file "failures" says, as with a busy TPM.
type seals struct {
	t      *testing.T
	folder string
}

func (s *seals) path(name string) string { return filepath.Join(s.folder, name) }

func (s *seals) boot(failures int) (log string) {
	s.t.Helper()
	write := func(name, text string, mode os.FileMode) {
		if err := os.WriteFile(s.path(name), []byte(text), mode); err != nil {
			s.t.Fatal(err)
		}
	}
	write("failures", fmt.Sprint(failures), 0o600)
	write("systemd-creds", `#!/bin/sh
left=$(cat "$RUNTIME_DIRECTORY/../failures")
if [ "$1" = decrypt ] && [ "$left" -gt 0 ]; then
	echo $((left - 1)) >"$RUNTIME_DIRECTORY/../failures"
	echo "the TPM is in lockout" >&2
	exit 1
fi
exec /usr/bin/systemd-creds "$@"
`, 0o755)
	write("sleep", "#!/bin/sh\n", 0o755) // outrider-seal calls it between attempts
	for _, folder := range []string{"etc", "run"} {
		if err := os.MkdirAll(s.path(folder), 0o700); err != nil {
			s.t.Fatal(err)
		}
	}
	script := exec.CommandContext(s.t.Context(),
		filepath.Join(parts.RepositoryRoot(), "packaging/libexec/outrider-seal"))
	script.Env = append(os.Environ(), "CONFIGURATION_DIRECTORY="+s.path("etc"),
		"RUNTIME_DIRECTORY="+s.path("run"), "PATH="+s.folder+":"+os.Getenv("PATH"))
	out, err := script.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
	if left, _ := os.ReadDir(s.path("run")); len(left) > 0 {
		s.t.Errorf("left in clear: %v", left)
	}
	return string(out)
}

// keys returns the keys in the seal, and the number of seals that were set aside.
func (s *seals) keys() (content []byte, aside int) {
	s.t.Helper()
	content, err := exec.CommandContext(s.t.Context(), "/usr/bin/systemd-creds", "decrypt",
		"--name=seal", s.path("etc/outrider.seal"), "-").Output()
	if err != nil {
		s.t.Fatal(err)
	}
	all, err := filepath.Glob(s.path("etc/outrider.seal.refused.*"))
	if err != nil {
		s.t.Fatal(err)
	}
	return content, len(all)
}

// TestSeal_FailedDecryptionsLoseNoKey makes outrider-seal set aside a seal that cannot be
// decrypted, and checks that its key is restored once it can be.
func TestSeal_FailedDecryptionsLoseNoKey(t *testing.T) {
	t.Parallel()
	s := &seals{t, t.TempDir()}
	s.boot(0)
	first, aside := s.keys()
	if len(first) != 32 || aside != 0 {
		t.Fatalf("%d bytes, %d set aside", len(first), aside)
	}
	s.boot(3) // fewer failures than the attempts of one boot
	if now, aside := s.keys(); !bytes.Equal(now, first) || aside != 0 {
		t.Errorf("after three failures: another key, or %d set aside", aside)
	}
	log := s.boot(100)
	second, aside := s.keys()
	if len(second) != 32 || bytes.Equal(second, first) || aside != 1 {
		t.Errorf("set aside: %d bytes, %d set aside", len(second), aside)
	}
	if want := "the TPM is in lockout"; !strings.Contains(log, want) {
		t.Errorf("the log has no reason: %s", log)
	}
	s.boot(0)
	if now, aside := s.keys(); !bytes.Equal(now, append(second, first...)) || aside != 0 {
		t.Errorf("it decrypts again: %d bytes, %d set aside", len(now), aside)
	}
	for range 6 { // six boots in which nothing can be decrypted
		s.boot(100)
	}
	if now, aside := s.keys(); len(now) != 32 || aside > 4 {
		t.Errorf("bounds: %d bytes, %d set aside", len(now), aside)
	}
	s.boot(0)
	if now, aside := s.keys(); len(now) > 128 || len(now) < 96 || aside != 0 {
		t.Errorf("bounds: %d bytes, %d set aside", len(now), aside)
	}
}
