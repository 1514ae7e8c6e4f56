package parts

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// insideEnv is an environment variable that is set in the process that RerunInOwnNetwork starts.
const insideEnv = "OUTRIDER_TEST_NETWORK"

// RerunInOwnNetwork reports whether the test runs in its own network namespace, in which no other
// process uses ports. If not, it runs the test in a new process and network namespace whose
// loopback interface is up, and returns false: the caller must then return.
func RerunInOwnNetwork(t *testing.T) bool {
	t.Helper()
	if os.Getenv(insideEnv) != "" {
		if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
			t.Fatalf("ip: %v: %s", err, out)
		}
		return true
	}
	command := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	command.Env = append(os.Environ(), insideEnv+"=1")
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET,
		Pdeathsig: syscall.SIGKILL}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
		command.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		command.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
		command.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: gid, Size: 1}}
	}
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("in a network of its own: %v\n%s", err, out)
	}
	t.Logf("in a network of its own:\n%s", out)
	return false
}

// OtherHost is a network namespace that acts as another host, connected to this host by a link.
type OtherHost struct {
	Peer    string // address of this host on the link
	Address string // address of the other host on the link
	process *os.Process
}

// NewOtherHost creates another host, which exists until the test ends. It requires root. In a
// function that OtherHost.RunOn calls, it connects the new host to that OtherHost.
func NewOtherHost(t testing.TB) *OtherHost {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("tests of other hosts must run as root")
	}
	holder := exec.Command("sleep", "infinity")
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET,
		Pdeathsig: syscall.SIGKILL}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the kernel removes both ends of the link with the namespace
		_ = holder.Process.Kill()
		_ = holder.Wait()
	})
	pid := holder.Process.Pid
	address := func(host int) string { // in the network that RFC 2544 reserves for tests
		return fmt.Sprintf("198.18.%d.%d", pid>>6&0xff, pid<<2&0xff+host)
	}
	h := &OtherHost{process: holder.Process, Peer: address(1), Address: address(2)}
	link, inside := fmt.Sprintf("ot%d", pid), []string{"nsenter", "-t", fmt.Sprint(pid), "-n", "ip"}
	for _, command := range [][]string{
		{"ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns",
			fmt.Sprint(pid)},
		{"ip", "addr", "add", h.Peer + "/30", "dev", link},
		{"ip", "link", "set", link, "up"},
		append(inside, "addr", "add", h.Address+"/30", "dev", "eth0"),
		append(inside, "link", "set", "eth0", "up"),
		append(inside, "link", "set", "lo", "up"),
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", command, err, out)
		}
	}
	return h
}

// Namespace returns the path of the host's network namespace.
func (h *OtherHost) Namespace() string { return fmt.Sprintf("/proc/%d/ns/net", h.process.Pid) }

// RunOn calls do in the network namespace of the host: sockets that the calling goroutine creates
// belong to the host.
func (h *OtherHost) RunOn(t testing.TB, do func()) {
	t.Helper()
	InNamespace(t, h.Namespace(), do)
}

// InNamespace calls do in the network namespace with a path.
func InNamespace(t testing.TB, path string, do func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	namespace := func(path string) *os.File {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	enter := func(file *os.File) {
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			t.Fatalf("enter the network namespace %s: %v", file.Name(), err)
		}
	}
	own, other := namespace("/proc/thread-self/ns/net"), namespace(path)
	defer func() { _, _ = own.Close(), other.Close() }()
	enter(other)
	defer enter(own)
	do()
}

// SetFilterRule applies an nftables rule to all packets that the host receives and sends. It
// replaces the rule of an earlier call; "" = no rule.
func (h *OtherHost) SetFilterRule(t testing.TB, rule string) {
	t.Helper()
	commands := "add table inet bad\ndelete table inet bad\n"
	if rule != "" {
		for _, hook := range []string{"input", "output"} {
			commands += fmt.Sprintf("add table inet bad\n"+
				"add chain inet bad %s { type filter hook %[1]s priority 0; }\n"+
				"add rule inet bad %[1]s %s\n", hook, rule)
		}
	}
	command := exec.Command("nsenter", "-t", fmt.Sprint(h.process.Pid), "-n", "nft", "-f", "-")
	command.Stdin = strings.NewReader(commands)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
}
