// Package machine boots a real systemd for tests, as PID 1 of a container with its own network,
// D-Bus and journal. Its root directory is that of this machine, or another one, below an overlay
// in memory. It boots in less than two seconds and downloads nothing. Any number of machines may
// run at the same time. It requires root and the package systemd-container (scripts/setup test).
//
// If the process that booted a machine exits or is killed, the machine ends as well. No process and
// no mount is left, because the mounts are in the machine's own mount namespace. After a kill,
// empty directories are left; the next Boot removes them.
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

// Signals for PID 1 of a machine (systemd(1)): SIGRTMIN+4 and SIGRTMIN+5. In glibc, SIGRTMIN is 34.
const (
	powerOffSignal = syscall.Signal(34 + 4)
	rebootSignal   = syscall.Signal(34 + 5)
)

const (
	// parent of the machines' directories; short, because socket paths are limited
	parent       = "/tmp"
	notifySuffix = ".notify" // suffix of the path of a machine's notify socket

	bootTime     = 60 * time.Second // time limit of a boot, which takes 0.5 s on an idle machine
	powerOffTime = 90 * time.Second // default of systemd's DefaultTimeoutStopSec=
	endingTime   = 10 * time.Second // time limit for killed processes to exit
	searchPath   = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// Options are the options of a machine.
type Options struct {
	// Root is the root directory of the system to boot, which is not changed; "": that of this
	// machine.
	Root string
	// BindMounts lists directories of this machine to mount read-only in the booted one: FOLDER, or
	// FOLDER:WHERE. Other directories of this machine must not change while the booted one runs.
	BindMounts []string
	// WritableBindMounts is like BindMounts, but the mounts are writable.
	WritableBindMounts []string
	// NetworkNamespace is the file of the network namespace to use, which must exist until Close;
	// "": a new one with loopback only.
	NetworkNamespace string
	// AllowedSystemCalls lists system calls that are allowed in addition to systemd-nspawn's
	// default: names, or groups (systemd.exec(5)).
	AllowedSystemCalls []string
}

// Machine is a running machine.
type Machine struct {
	name    string
	dir     string // mount point of its root directory, in its own mount namespace
	cgroup  string
	process *exec.Cmd // the process that executes systemd-nspawn
	leader  int       // PID of the machine's PID 1 in the host's PID namespace
	console *console
	notify  *notifySocket
	exited  chan struct{}
	close   func() error
}

// Boot boots a machine and returns when its systemd has started. ctx limits only the boot.
func Boot(ctx context.Context, options Options) (*Machine, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("boot a machine: requires root; run the tests as root")
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
		cmp.Or(options.Root, "/"), options.NetworkNamespace}
	for _, folder := range options.BindMounts {
		arguments = append(arguments, "--bind-ro="+folder)
	}
	for _, folder := range options.WritableBindMounts {
		arguments = append(arguments, "--bind="+folder)
	}
	for _, call := range options.AllowedSystemCalls {
		arguments = append(arguments, "--system-call-filter="+call)
	}
	m.process = exec.Command("/bin/sh", arguments...)
	m.process.Env = []string{searchPath, "NOTIFY_SOCKET=" + m.notify.path}
	m.process.Stdout, m.process.Stderr = m.console, m.console
	m.process.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Setpgid:    true, // Ctrl-C must only reach this process, which then powers off the machine
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := m.process.Start(); err != nil {
		m.notify.close()
		return nil, errors.Join(fmt.Errorf("boot a machine: %w", err), os.Remove(dir))
	}
	go func() {
		_ = m.process.Wait() // the error is ignored: the console output contains the reason
		close(m.exited)
	}()
	if err := m.up(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("boot a machine: %w; its console:\n%s", err, m.console),
			m.Close())
	}
	return m, nil
}

// up waits until a systemd with another PID than before reports READY=1. After a mere reload,
// systemd also reports READY=1, with the same PID.
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

// Reboot stops all units in order and boots again, without resetting files. It returns when systemd
// has started.
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

// Name returns the machine's host name.
func (m *Machine) Name() string { return m.name }

// Leader returns the PID of the machine's PID 1 in the host's PID namespace.
func (m *Machine) Leader() int { return m.leader }

// Command returns a command that runs in the machine as root, outside of its units.
func (m *Machine) Command(ctx context.Context, program string, arguments ...string) *exec.Cmd {
	enter := []string{"-t", fmt.Sprint(m.leader), "-a", "--", "env", "-i", searchPath, "HOME=/root",
		"LANG=C.UTF-8", program}
	return exec.CommandContext(ctx, "nsenter", append(enter, arguments...)...)
}

// Run runs a program in the machine and returns its trimmed standard output and standard error.
func (m *Machine) Run(ctx context.Context, program string, arguments ...string) (string, error) {
	out, err := m.Command(ctx, program, arguments...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return text, fmt.Errorf("in the machine, %s %s: %w: %s", program,
			strings.Join(arguments, " "), err, text)
	}
	return text, nil
}

// WriteFile writes a file in the machine and creates its parent directories.
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

// PowerOff stops all units in order and removes the machine.
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

// Close kills the machine if it is running, and removes its directory and control group.
func (m *Machine) Close() error { return m.close() }

func (m *Machine) end() error {
	defer m.notify.close()
	select {
	case <-m.exited:
	default:
		// the kernel also kills all other processes in the PID namespace
		_ = m.process.Process.Kill()
		select {
		case <-m.exited:
		case <-time.After(endingTime):
			return fmt.Errorf("machine %s still runs after SIGKILL", m.name)
		}
	}
	return errors.Join(removeCgroup(m.cgroup, time.Now().Add(endingTime)), os.Remove(m.dir))
}

// console is a writer that stores the last consoleSize bytes.
type console struct {
	mu   sync.Mutex
	text []byte
}

// consoleSize limits the stored console output, in bytes.
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
