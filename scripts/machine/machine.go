// Package machine boots a real systemd for tests: PID 1 of a container whose root is this machine's
// own, or another one, under an overlay in memory, with a network, a D-Bus and a journal of its
// own. It boots in under two seconds and downloads nothing. Any number may run at once. It needs
// root and the package systemd-container (scripts/setup test).
//
// Whatever happens to the process that booted it, a machine leaves no mount and no process: its
// mounts are in a namespace that ends with it, and it ends with the process. The empty folders of a
// killed process are removed by the next Boot.
package machine

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

//go:embed boot.sh
var bootScript string

// What PID 1 does at a signal: SIGRTMIN+4 and +5 (systemd(1)); SIGRTMIN is 34 for programs of the
// GNU C library.
const (
	powerOffSignal = syscall.Signal(34 + 4)
	rebootSignal   = syscall.Signal(34 + 5)
)

const (
	parent       = "/tmp"    // of the folders of machines: a path short enough for a socket
	notifySuffix = ".notify" // of the socket beside it

	bootTime     = 60 * time.Second // 0.5 s on an idle machine
	powerOffTime = 90 * time.Second // what systemd gives units to stop by default
	endingTime   = 10 * time.Second // for what was killed to be gone
	searchPath   = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// Options of a machine.
type Options struct {
	// Root is the folder of the system that is booted, which it does not change; "": this machine's
	// own root.
	Root string
	// Bind are folders of this machine to be seen in the other, read-only: FOLDER, or FOLDER:WHERE.
	// A bound folder is the only one that may change here while the machine runs.
	Bind []string
	// BindWritable are the same, and may be written to.
	BindWritable []string
}

// Machine is a machine that runs.
type Machine struct {
	name    string
	dir     string // holds its root, in its own mount namespace
	cgroup  string
	process *exec.Cmd // systemd-nspawn
	leader  int       // its PID 1, as seen from here
	console *console
	notify  *notifySocket
	exited  chan struct{}
	close   func() error
}

// Boot boots a machine, and returns once its systemd says that it is up. ctx bounds the boot alone.
func Boot(ctx context.Context, options Options) (*Machine, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("boot a machine: only root may; run the tests as root")
	}
	if _, err := exec.LookPath("systemd-nspawn"); err != nil {
		return nil, fmt.Errorf("boot a machine: %w; install systemd-container (scripts/setup test)",
			err)
	}
	ctx, cancel := context.WithTimeout(ctx, bootTime)
	defer cancel()
	sweep()
	dir, err := os.MkdirTemp(parent, "machine")
	if err != nil {
		return nil, fmt.Errorf("boot a machine: %w", err)
	}
	m := &Machine{name: filepath.Base(dir), dir: dir, console: &console{},
		exited: make(chan struct{})}
	m.cgroup = filepath.Join(cgroupRoot(), cgroupName(m.name))
	m.close = sync.OnceValue(m.end)
	if m.notify, err = listenNotify(dir + notifySuffix); err != nil {
		return nil, errors.Join(fmt.Errorf("boot a machine: %w", err), os.Remove(dir))
	}

	arguments := []string{"-c", bootScript, "boot.sh", m.name, dir, m.cgroup,
		cmp.Or(options.Root, "/")}
	for _, folder := range options.Bind {
		arguments = append(arguments, "--bind-ro="+folder)
	}
	for _, folder := range options.BindWritable {
		arguments = append(arguments, "--bind="+folder)
	}
	m.process = exec.Command("/bin/sh", arguments...)
	m.process.Env = []string{searchPath, "NOTIFY_SOCKET=" + m.notify.path}
	m.process.Stdout, m.process.Stderr = m.console, m.console
	m.process.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Setpgid:    true, // Ctrl-C is for us; the machine is powered off
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := m.process.Start(); err != nil {
		m.notify.close()
		return nil, errors.Join(fmt.Errorf("boot a machine: %w", err), os.Remove(dir))
	}
	go func() {
		_ = m.process.Wait() // its console says why
		close(m.exited)
	}()
	if err := m.up(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("boot a machine: %w; its console:\n%s", err, m.console),
			m.Close())
	}
	return m, nil
}

// up waits until a PID 1 that is not the present one says that the machine is up. The present one
// says so of its reloads.
func (m *Machine) up(ctx context.Context) error {
	var unknown error
	for {
		if err := m.notify.ready(ctx, m.exited); err != nil {
			return errors.Join(err, unknown)
		}
		var leader int
		if leader, unknown = findLeader(m.cgroup); unknown == nil && leader != m.leader {
			m.leader = leader
			return nil
		}
	}
}

// Reboot stops all units in their order and boots again: what is on disk stays. It returns once
// systemd says that it is up.
func (m *Machine) Reboot(ctx context.Context) error {
	if err := syscall.Kill(m.leader, rebootSignal); err != nil {
		return fmt.Errorf("reboot %s: %w", m.name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, powerOffTime+bootTime)
	defer cancel()
	if err := m.up(ctx); err != nil {
		return fmt.Errorf("reboot %s: %w; its console:\n%s", m.name, err, m.console)
	}
	return nil
}

// Name is the machine's host name.
func (m *Machine) Name() string { return m.name }

// Leader is the machine's PID 1, as seen from here.
func (m *Machine) Leader() int { return m.leader }

// Command prepares a program to run in the machine, as root and outside of every unit.
func (m *Machine) Command(ctx context.Context, program string, arguments ...string) *exec.Cmd {
	enter := []string{"-t", fmt.Sprint(m.leader), "-a", "--", "env", "-i", searchPath, "HOME=/root",
		"LANG=C.UTF-8", program}
	return exec.CommandContext(ctx, "nsenter", append(enter, arguments...)...)
}

// Run runs a program in the machine and returns what it printed, on both channels, without space
// around it.
func (m *Machine) Run(ctx context.Context, program string, arguments ...string) (string, error) {
	out, err := m.Command(ctx, program, arguments...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return text, fmt.Errorf("in the machine, %s %s: %w: %s", program,
			strings.Join(arguments, " "), err, text)
	}
	return text, nil
}

// WriteFile writes a file in the machine, and the folders above it.
func (m *Machine) WriteFile(ctx context.Context, path string, content []byte,
	mode os.FileMode) error {
	const script = `mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"`
	command := m.Command(ctx, "sh", "-c", script, "sh", path, fmt.Sprintf("%o", mode.Perm()))
	command.Stdin = bytes.NewReader(content)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("write %s in the machine: %w: %s", path, err, out)
	}
	return nil
}

// Console is the last that the machine printed.
func (m *Machine) Console() string { return m.console.String() }

// PowerOff stops the machine as an administrator does, all units in their order, and removes it.
func (m *Machine) PowerOff(ctx context.Context) error {
	if err := syscall.Kill(m.leader, powerOffSignal); err != nil {
		return errors.Join(fmt.Errorf("power off %s: %w", m.name, err), m.Close())
	}
	select {
	case <-m.exited:
		return m.Close()
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("power off %s: %w; its console:\n%s", m.name, ctx.Err(),
			m.console), m.Close())
	}
}

// Close ends the machine at once, if it still runs, and removes what is left of it.
func (m *Machine) Close() error { return m.close() }

func (m *Machine) end() error {
	defer m.notify.close()
	select {
	case <-m.exited:
	default:
		_ = m.process.Process.Kill() // all of its process namespace dies with it
		select {
		case <-m.exited:
		case <-time.After(endingTime):
			return fmt.Errorf("machine %s does not end", m.name)
		}
	}
	return errors.Join(removeCgroup(m.cgroup, time.Now().Add(endingTime)), os.Remove(m.dir))
}

// console keeps the end of what is printed.
type console struct {
	mu   sync.Mutex
	text []byte
}

// consoleSize is how much of the console is kept.
const consoleSize = 64 << 10

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text = append(c.text, p...)
	if over := len(c.text) - consoleSize; over > 0 {
		c.text = append(c.text[:0], c.text[over:]...)
	}
	return len(p), nil
}

func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.text)
}

var _ io.Writer = (*console)(nil)
