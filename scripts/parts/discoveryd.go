package parts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Discoveryd describes an outrider-discoveryd that serves a folder of mesh files.
type Discoveryd struct {
	Program    string // path of the program; "": the result of BuildProgram
	MeshFolder string
	Plaintext  string // plaintext address; "": none
	TLS        string // address with TLS; "": none
	// MonitoringAddress is the address of pages and metrics; "": none.
	MonitoringAddress string
	ExtraConfig       string // further tables of the configuration, in TOML
}

// Command returns a command that runs outrider-discoveryd with a new configuration file and state
// directory.
func (d Discoveryd) Command(t testing.TB) *exec.Cmd {
	t.Helper()
	own := ShortDir(t)
	if d.Program == "" {
		d.Program = BuildProgram(t, "outrider-discoveryd")
	}
	file := filepath.Join(own, "discoveryd.toml")
	text := fmt.Sprintf("[paths]\nstate_dir = %q\n[listen]\nplaintext = %q\ntls = %q\n"+
		"monitoring = %q\n%s\n[[source]]\ntype = \"files\"\npaths = [%q]\n",
		filepath.Join(own, "state"), d.Plaintext, d.TLS, d.MonitoringAddress, d.ExtraConfig, d.MeshFolder)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return exec.Command(d.Program, "--config", file)
}
