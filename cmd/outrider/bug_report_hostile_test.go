package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/apitest"
)

const (
	nobody = 65534
	shadow = "root:$y$j9T$0123456789abcdef:20000:0:99999:7:::\n"
)

// hostileMachine returns a test host whose agent and runtime folder belong to an unprivileged user,
// and the path of a file that only root may read. plant places files in the folder, and returns
// paths that the agent then reports.
func hostileMachine(t *testing.T, plant func(m *machine, secret string) []string) (*machine,
	string) {
	t.Helper()
	backend := &apitest.Backend{StatusValue: someStatus()}
	backend.StatusValue.Epochs = nil
	m := newMachine(t, backend)
	secret := m.write("shadow", shadow)
	m.write("etc/outrider.toml", "[log]\n")
	m.write("etc/token", shadow)
	backend.StatusValue.ConfigFiles = append(plant(m, secret), m.dir+"/etc/outrider.toml")
	for _, path := range backend.StatusValue.ConfigFiles {
		backend.StatusValue.Epochs = append(backend.StatusValue.Epochs,
			api.Epoch{State: api.EpochLive, BootstrapPath: path})
	}
	if err := os.Chown(m.dir+"/run/envoy", nobody, nobody); err != nil {
		t.Fatal(err)
	}
	return m, secret
}

// TestBugReport_HostileAgent: the agent's user reports paths, and places files in its runtime
// folder. The report that root makes contains nothing that only root may read, and the command does
// not block.
func TestBugReport_HostileAgent(t *testing.T) {
	for name, plant := range map[string]func(m *machine, secret string) []string{
		"a file elsewhere": func(_ *machine, secret string) []string { return []string{secret} },
		"a file by way of the configuration": func(m *machine, _ string) []string {
			return []string{m.dir + "/etc/../shadow", m.dir + "/etc/conf.d/../../shadow"}
		},
		"a token beside the configuration": func(m *machine, _ string) []string {
			return []string{m.dir + "/etc/token"}
		},
		"a relative path": func(m *machine, secret string) []string {
			return []string{strings.Repeat("../", 20) + secret, "shadow", ".", ""}
		},
		"a symbolic link": func(m *machine, secret string) []string {
			m.replace("run/envoy/envoy-rev1.json",
				func(path string) error { return os.Symlink(secret, path) })
			return []string{m.dir + "/run/envoy/envoy-rev1.json"}
		},
		"a hard link": func(m *machine, secret string) []string {
			m.replace("run/envoy/envoy-rev1.json",
				func(path string) error { return os.Link(secret, path) })
			return []string{m.dir + "/run/envoy/envoy-rev1.json"}
		},
		"a folder elsewhere": func(m *machine, _ string) []string {
			m.write("outside/envoy-rev1.json", shadow)
			m.replace("run/envoy",
				func(path string) error { return os.Symlink(m.dir+"/outside", path) })
			return []string{m.dir + "/run/envoy/envoy-rev1.json"}
		},
		"a FIFO": func(m *machine, _ string) []string {
			m.replace("run/envoy/envoy-rev1.json", m.fifo)
			return []string{m.dir + "/run/envoy/envoy-rev1.json"}
		},
		"a device": func(m *machine, _ string) []string {
			return []string{"/dev/zero", "/dev/tty", "/proc/kmsg", "/proc/self/environ"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, secret := hostileMachine(t, plant)
			path := filepath.Join(m.dir, "r.tar.gz")
			ended := make(chan string, 1)
			go func() {
				_, out, problems := m.outrider("bug-report", "-o", path)
				ended <- out + problems
			}()
			select {
			case said := <-ended:
				t.Log(said)
			case <-time.After(time.Minute):
				t.Fatal("it hangs")
			}
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			files := readReport(t, content)
			for name, text := range files {
				if strings.Contains(text, "$y$") {
					t.Errorf("%s discloses %s", name, secret)
				}
			}
			got := slices.DeleteFunc(slices.Sorted(maps.Keys(files)),
				func(name string) bool { return !strings.HasPrefix(name, "files/") })
			if want := "files" + m.dir + "/etc/outrider.toml"; !slices.Equal(got, []string{want}) {
				t.Errorf("files %q, want only %s", got, want)
			}
		})
	}
}

// TestBugReport_HostileAgentFillsNoDisk: the agent's user reports one file in many spellings,
// places many files, and places a hard link to a file of root. The report contains at most 1,000
// files, and not the file of root.
func TestBugReport_HostileAgentFillsNoDisk(t *testing.T) {
	m, _ := hostileMachine(t, func(m *machine, _ string) []string {
		if err := os.Chown(m.write("run/envoy/envoy-rev0.json", "{}"), nobody, nobody); err != nil {
			t.Fatal(err)
		}
		// Owned by root, as a hard link to a file of root would be.
		m.write("run/envoy/envoy-rev1.json", shadow)
		var names []string
		for i := range 1200 {
			path := m.write(fmt.Sprintf("run/envoy/envoy-rev9%d.json", i), "{}")
			if err := os.Chown(path, nobody, nobody); err != nil {
				t.Fatal(err)
			}
			names = append(names, m.dir+"/run/envoy/"+strings.Repeat("./", i%100)+"envoy-rev0.json")
		}
		return names
	})
	path := filepath.Join(m.dir, "r.tar.gz")
	code, out, problems := m.outrider("bug-report", "-o", path)
	if code != 0 || !strings.Contains(problems, " files: a report contains at most 1000 files") ||
		!strings.Contains(problems, "envoy-rev1.json belongs to root, but its directory does not") {
		t.Errorf("exit %d: %s%s", code, out, problems)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for name, text := range readReport(t, content) {
		if strings.HasPrefix(name, "files/") {
			count++
		}
		if strings.Contains(text, "$y$") {
			t.Errorf("%s discloses a file of root", name)
		}
	}
	if count > 1000 {
		t.Errorf("%d files", count)
	}
}

// A signal or the deadline ends the command even while the read of a file blocks, such as that of a
// FIFO in root's configuration folder.
func TestBugReport_EndsOnSignalAndDeadline(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	begun := make(chan struct{})
	go func() {
		<-begun
		cancel()
	}()
	read := func() (string, error) {
		close(begun)
		return readFile(fifo)
	}
	if content, err := within(ctx, read); content != "" || err == nil {
		t.Errorf("%q, %v", content, err)
	}
	writer, err := os.OpenFile(fifo, os.O_WRONLY, 0) // ends the read, which still blocks
	if err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()

	m, _ := hostileMachine(t, func(*machine, string) []string { return nil })
	path := filepath.Join(m.dir, "r.tar.gz")
	code := m.app(&bytes.Buffer{}, &bytes.Buffer{}).run(ctx, []string{"bug-report", "-o", path})
	if code == 0 || exists(path) {
		t.Errorf("exit code %d after a signal, a report: %t", code, exists(path))
	}
}
