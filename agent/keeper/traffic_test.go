package keeper

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

// A client's connection is told from one to an upstream, whatever its port, while it listens and when it does not any more.
func TestDownstream(t *testing.T) {
	admin := parts.ShortDir(t)
	measure := func(pid int) traffic {
		t.Helper()
		found, err := usage{proc: "/proc"}.traffic([]int{pid}, admin)
		if err != nil {
			t.Fatal(err)
		}
		return found[pid]
	}
	before := measure(os.Getpid())
	for name, test := range map[string]struct {
		network, address        string
		established, downstream uint64
	}{
		"a port outside of the kernel's range": {"tcp", fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t)), 2, 1},
		"one within":                           {"tcp", "127.0.0.1:0", 2, 1},
		"one within, IPv6":                     {"tcp", "[::1]:0", 2, 1},
		"a Unix socket":                        {"unix", filepath.Join(parts.ShortDir(t), "a socket"), 0, 1},
		"an abstract one":                      {"unix", "@" + parts.ShortDir(t), 0, 1},
		"the admin's":                          {"unix", filepath.Join(admin, "admin-1.sock"), 0, 0},
	} {
		check := func(when string, established uint64) {
			t.Helper()
			now := measure(os.Getpid())
			if now.established-before.established != established || now.downstream-before.downstream != test.downstream {
				t.Errorf("%s, %s: %+v, before %+v", name, when, now, before)
			}
		}
		listener, err := net.Listen(test.network, test.address)
		if err != nil {
			t.Fatal(err)
		}
		client, err := net.Dial(test.network, listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		check("while it listens", test.established)
		_ = listener.Close()
		check("when it has closed", test.established)
		if tcp, ok := client.(*net.TCPConn); ok { // the client has said all, and waits for the answer
			if err := tcp.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			for measure(os.Getpid()).established != before.established { // until the other side knows
				time.Sleep(time.Millisecond)
			}
			check("half closed", 0)
		}
		_ = client.Close()
		_ = accepted.Close()
	}
	if gone := measure(1 << 30); gone != (traffic{}) {
		t.Errorf("of no process: %+v", gone)
	}
}

// A hot restart shares the sockets of listeners: each process listens until it closes its own.
func TestTraffic_TellsWhoListens(t *testing.T) {
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	file, err := listener.File()
	if err != nil {
		t.Fatal(err)
	}
	pids := sharedWith(t, file)
	_ = file.Close()
	listening := func() (all []bool) {
		found, err := usage{proc: "/proc"}.traffic(pids, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range pids {
			all = append(all, found[pid].listening)
		}
		return all
	}
	if all := listening(); !slices.Equal(all, []bool{true, true}) {
		t.Errorf("both have it: %v", all)
	}
	_ = unix.Kill(pids[1], unix.SIGUSR1) // it closes its own
	for deadline := time.Now().Add(20 * time.Second); !slices.Equal(listening(), []bool{true, false}); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("one has closed it: %v", listening())
		}
	}
	_ = listener.Close()
}

// sharedWith starts two processes that have a socket; the second closes it on SIGUSR1.
func sharedWith(t *testing.T, file *os.File) (pids []int) {
	t.Helper()
	for range 2 {
		holder := exec.Command("bash", "-c", `trap 'exec 3>&-' USR1; echo ready; while :; do sleep 0.05; done`)
		holder.ExtraFiles = []*os.File{file}
		out, err := holder.StdoutPipe()
		if err == nil {
			err = holder.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = holder.Process.Kill()
			_ = holder.Wait()
		})
		if _, err := io.ReadFull(out, make([]byte, len("ready"))); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, holder.Process.Pid)
	}
	return pids
}

// A table that grows while it is read tells some of its lines twice.
func TestTrafficIsCountedOnce(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	var inode uint64
	raw, err := client.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		var status unix.Stat_t
		if err := unix.Fstat(int(fd), &status); err != nil {
			t.Error(err)
		}
		inode = status.Ino
	})
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	line := fmt.Sprintf("0: 0100007F:A000 0100007F:1F90 01 00000000:00000000 00:00000000 00000000 0 0 %d 1 0 20 4 30 10 -1\n", inode)
	for name, text := range map[string]string{"tcp": line + line, "udp": "", "unix": ""} {
		if err := errors.Join(os.MkdirAll(filepath.Join(folder, "self/net"), 0o755), os.WriteFile(filepath.Join(folder, "self/net", name), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(fmt.Sprintf("/proc/%d", os.Getpid()), filepath.Join(folder, fmt.Sprint(os.Getpid()))); err != nil {
		t.Fatal(err)
	}
	found, err := usage{proc: folder}.traffic([]int{os.Getpid()}, "")
	if now := found[os.Getpid()]; err != nil || now != (traffic{established: 1}) {
		t.Errorf("%+v, %v", now, err)
	}
}

// subset is /proc as a unit with ProcSubset=pid has it: processes alone.
func subset(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	for _, process := range []string{"self", fmt.Sprint(os.Getpid())} {
		if err := os.Symlink("/proc/"+process, filepath.Join(folder, process)); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// Who serves UDP may have anything in flight.
func TestDownstreamOfUDP(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	client, err := net.Dial("tcp", listener.Addr().String()) // nobody accepts it: one connection is ours, to an upstream
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	for name, test := range map[string]struct {
		system    string
		reusePort int
		port      int
		all       bool
	}{
		"a client":       {"/proc", 0, 0, false},
		"a fixed port":   {"/proc", 0, parts.FreePort(t), true},
		"Envoy's":        {"/proc", 1, 0, true},
		"ProcSubset=pid": {subset(t), 1, parts.FreePort(t), true},
	} {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		err = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEPORT, test.reusePort)
		if err = errors.Join(err, unix.Bind(socket, &unix.SockaddrInet4{Port: test.port, Addr: [4]byte{127, 0, 0, 1}})); err != nil {
			t.Fatal(err)
		}
		// A hot restart hands the sockets over: two processes have them.
		file := os.NewFile(uintptr(socket), "datagrams")
		heir := exec.Command("sleep", "60")
		heir.ExtraFiles = []*os.File{file}
		if err := heir.Start(); err != nil {
			t.Fatal(err)
		}
		for name := ""; name != "sleep\n"; { // until then it has what it closes when it executes its program
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", heir.Process.Pid))
			if name = string(text); err != nil {
				t.Fatal(err)
			}
		}
		found, err := usage{proc: test.system}.traffic([]int{os.Getpid(), heir.Process.Pid}, "")
		now := found[os.Getpid()]
		if err != nil || now.established == 0 || (now.downstream >= now.established) != test.all {
			t.Errorf("%s: %+v, %v", name, now, err)
		}
		_ = file.Close()
		_ = heir.Process.Kill()
		_ = heir.Wait()
	}
}
