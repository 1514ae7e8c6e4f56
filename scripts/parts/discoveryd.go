package parts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Discoveryd is an outrider-discoveryd that serves a folder of mesh files.
type Discoveryd struct {
	Program   string // path; "": BuildProgram's
	Folder    string
	Plaintext string // address; "": none
	TLS       string // address; "": none
	// Monitoring is the address of pages and metrics; "": none.
	Monitoring string
	More       string // further tables of its configuration
}

// Command returns the command, with a configuration and a state directory of its own.
func (d Discoveryd) Command(t testing.TB) *exec.Cmd {
	t.Helper()
	own := ShortDir(t)
	if d.Program == "" {
		d.Program = BuildProgram(t, "outrider-discoveryd")
	}
	file := filepath.Join(own, "discoveryd.toml")
	text := fmt.Sprintf("[paths]\nstate_dir = %q\n[listen]\nplaintext = %q\ntls = %q\n"+
		"monitoring = %q\n%s\n[[source]]\ntype = \"files\"\npaths = [%q]\n",
		filepath.Join(own, "state"), d.Plaintext, d.TLS, d.Monitoring, d.More, d.Folder)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return exec.Command(d.Program, "--config", file)
}
