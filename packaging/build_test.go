// Package packaging tests the packages: their content, that builds are reproducible, and their
// effect on a machine.
package packaging

import (
	"crypto/sha256"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

// The two versions that the tests build, and their dates.
const (
	oldVersion = "0.9.1"
	newVersion = "0.9.2"
	buildTime  = "1790000000"
)

// packages are built once for all tests, in a directory that TestMain removes.
type packages struct {
	folder string
	mu     sync.Mutex
	built  map[string]error
}

var shared packages

func TestMain(m *testing.M) {
	folder, err := os.MkdirTemp("/tmp", "packages")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	shared = packages{folder: folder, built: map[string]error{}}
	code := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// build runs scripts/package and returns the directory with the result, which is cached by name.
func (p *packages) build(t *testing.T, name string, environment ...string) string {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	dist := filepath.Join(p.folder, name)
	err, done := p.built[name]
	if !done {
		command := exec.CommandContext(t.Context(), filepath.Join(parts.RepositoryRoot(), "scripts",
			"package"))
		command.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+buildTime, "DIST="+dist,
			"WORK="+dist+".work")
		command.Env = append(command.Env, environment...)
		var out []byte
		if out, err = command.CombinedOutput(); err != nil {
			err = fmt.Errorf("scripts/package: %w: %s", err, out)
		}
		p.built[name] = err
	}
	if err != nil {
		t.Fatal(err)
	}
	return dist
}

// quick is for debs whose compression does not matter.
const quick = "DEB_COMPRESSION=zstd"

// old and new return the directories with the packages of the two versions for amd64.
func (p *packages) old(t *testing.T) string {
	return p.build(t, "old", "VERSION="+oldVersion, "ARCHITECTURES=amd64")
}

func (p *packages) new(t *testing.T) string {
	return p.build(t, "new", "VERSION="+newVersion, "ARCHITECTURES=amd64", quick)
}

func deb(folder, version string) string {
	return filepath.Join(folder, "outrider_"+version+"-1_amd64.deb")
}

func rpm(folder, version string) string {
	return filepath.Join(folder, "outrider-"+version+"-1.x86_64.rpm")
}

// run runs a program and returns its output.
func run(t *testing.T, program string, arguments ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", program, strings.Join(arguments, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// Equal sources and SOURCE_DATE_EPOCH give equal bytes, regardless of the builder's umask, time
// zone and locale.
func TestReproducible(t *testing.T) {
	t.Parallel()
	first := shared.old(t)
	script := "umask 077; exec " + filepath.Join(parts.RepositoryRoot(), "scripts", "package")
	second := filepath.Join(shared.folder, "again")
	command := exec.CommandContext(t.Context(), "sh", "-c", script)
	command.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+buildTime, "VERSION="+oldVersion,
		"ARCHITECTURES=amd64",
		"DIST="+second, "WORK="+second+".work", "TZ=Pacific/Auckland", "LANG=de_DE.UTF-8")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("scripts/package: %v: %s", err, out)
	}
	for _, path := range []string{deb(first, oldVersion), rpm(first, oldVersion),
		discoverydDeb(first, oldVersion), discoverydRPM(first, oldVersion)} {
		if again := filepath.Join(second, filepath.Base(path)); digest(t, path) != digest(t,
			again) {
			t.Errorf("%s was built twice and is not the same", filepath.Base(path))
		}
	}
}

func digest(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(content)
}

// Packages for arm64 contain programs for arm64.
func TestArm64(t *testing.T) {
	t.Parallel()
	folder := shared.build(t, "arm64", "VERSION="+oldVersion, "ARCHITECTURES=arm64",
		"PACKAGES=outrider", quick)
	if got := run(t, "rpm", "-qp", "--qf", "%{ARCH}",
		filepath.Join(folder, "outrider-"+oldVersion+"-1.aarch64.rpm")); got != "aarch64" {
		t.Errorf("the rpm is for %s", got)
	}
	unpacked := t.TempDir()
	run(t, "dpkg-deb", "-x", filepath.Join(folder, "outrider_"+oldVersion+"-1_arm64.deb"), unpacked)
	for _, program := range []string{"usr/bin/outrider", "usr/sbin/outriderd",
		"usr/libexec/outrider/outrider-keeper",
		"usr/libexec/outrider/outrider-capture",
		"usr/libexec/outrider/outrider-bootstrap",
		"usr/libexec/outrider/outrider-probe"} {
		file, err := elf.Open(filepath.Join(unpacked, program))
		if err != nil {
			t.Fatal(err)
		}
		if file.Machine != elf.EM_AARCH64 {
			t.Errorf("%s is for %v", program, file.Machine)
		}
		_ = file.Close()
	}
}
