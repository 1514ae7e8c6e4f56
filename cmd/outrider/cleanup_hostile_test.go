package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestCleanup_HostileDirectories places files in the directories, as a compromised Envoy or agent
// could. The command, run by root, neither changes files elsewhere nor blocks.
func TestCleanup_HostileDirectories(t *testing.T) {
	for name, plant := range map[string]func(m *machine, outside string){
		"base id is a FIFO": func(m *machine, _ string) { m.replace("keeper/base-id", m.fifo) },
		"base id is a symbolic link": func(m *machine, outside string) {
			m.replace("keeper/base-id", func(path string) error {
				return os.Symlink(outside+"/base-id", path)
			})
		},
		"base id is a hard link": func(m *machine, outside string) {
			m.replace("keeper/base-id", func(path string) error {
				return os.Link(outside+"/base-id", path)
			})
		},
		"base id is a directory": func(m *machine, _ string) {
			m.replace("keeper/base-id", func(path string) error { return os.Mkdir(path, 0o700) })
		},
		"base id is a device": func(m *machine, _ string) {
			m.replace("keeper/base-id", func(path string) error {
				return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(5, 0)))
			})
		},
		"base id is large": func(m *machine, _ string) {
			m.write("keeper/base-id", strings.Repeat("4711", 1<<20))
		},
		"lock is a FIFO": func(m *machine, _ string) { m.replace("keeper/lock", m.fifo) },
		"lock is a symbolic link": func(m *machine, outside string) {
			m.replace("keeper/lock", func(path string) error {
				return os.Symlink(outside+"/base-id", path)
			})
		},
		"the keeper's folder is elsewhere": func(m *machine, outside string) {
			m.replace("keeper", func(path string) error { return os.Symlink(outside, path) })
		},
		"Envoy's configuration is elsewhere": func(m *machine, outside string) {
			m.replace("run/envoy", func(path string) error { return os.Symlink(outside, path) })
		},
		"the state of the interception is elsewhere": func(m *machine, outside string) {
			m.replace("capture", func(path string) error { return os.Symlink(outside, path) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, nil)
			m.write("keeper/base-id", "4711\n")
			m.write("keeper/lock", "")
			if err := os.MkdirAll(filepath.Join(m.dir, "outside"), 0o755); err != nil {
				t.Fatal(err)
			}
			outside := []string{m.deadSocket("outside/admin-0.sock"),
				m.deadSocket("outside/outrider.sock"), m.write("outside/base-id", "4711\n"),
				m.write("outside/envoy-rev0.json", "{}"), m.write("outside/lock", ""),
				m.write("outside/state.json", "{}")}
			memory := m.write("shm/envoy_shared_memory_47110", "x")
			if err := os.Chown(filepath.Join(m.dir, "keeper/base-id"), 12345, 12345); err != nil {
				t.Fatal(err)
			}
			plant(m, filepath.Join(m.dir, "outside"))
			ended := make(chan string, 1)
			go func() {
				_, out, problems := m.outrider("cleanup", "--stop")
				ended <- out + problems
			}()
			select {
			case said := <-ended:
				t.Log(said)
			case <-time.After(30 * time.Second):
				t.Fatal("it hangs")
			}
			for _, path := range append(outside, memory) {
				if !exists(path) {
					t.Errorf("%s is gone", path)
				}
			}
		})
	}
}

// replace removes the file or directory at path, and calls the function by to create another one
// there.
func (m *machine) replace(path string, by func(path string) error) {
	m.t.Helper()
	path = filepath.Join(m.dir, path)
	if err := os.RemoveAll(path); err != nil {
		m.t.Fatal(err)
	}
	if err := by(path); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) fifo(path string) error { return unix.Mkfifo(path, 0o600) }
