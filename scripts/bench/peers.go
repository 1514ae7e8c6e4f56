package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// istiod's debounce times, which are subtracted from the time of a change: 250 ms in its reader of
// files (pkg/kube/krt/files), and PILOT_DEBOUNCE_AFTER before a push.
const (
	istiodFileDebounce = 250 * time.Millisecond
	pushDebounce       = 100 * time.Millisecond // default of both servers
)

// discoveryServer is a server for a directory of YAML.
type discoveryServer struct {
	address  string
	process  *exec.Cmd
	ready    time.Duration // from exec until clients can connect
	debounce time.Duration // intentional delay after a file changes
	output   bytes.Buffer
}

// startServer starts outrider-discoveryd, or istiod.
func startServer(t *stage, name, folder string) *discoveryServer {
	t.Helper()
	s := &discoveryServer{}
	switch name {
	case "outrider":
		s.debounce = pushDebounce
		s.address = fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))
		s.process = parts.Discoveryd{MeshFolder: folder, Plaintext: s.address}.Command(t)
	case "istiod":
		s.debounce = istiodFileDebounce + pushDebounce
		s.istiod(t, folder)
	}
	s.start(t)
	return s
}

// start starts the process and waits until clients can connect.
func (s *discoveryServer) start(t *stage) {
	t.Helper()
	s.process.Stdout, s.process.Stderr = &s.output, &s.output
	s.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	begun := time.Now()
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	for {
		connection, err := net.Dial("tcp", s.address)
		if err == nil {
			_ = connection.Close()
			s.ready = time.Since(begun)
			return
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("%s does not listen: %s", s.process.Path, s.output.String())
		}
		time.Sleep(time.Millisecond)
	}
}

// istiod sets the command line of istiod.
func (s *discoveryServer) istiod(t *stage, folder string) {
	t.Helper()
	ports := [3]int{parts.FreePort(t), parts.FreePort(t), parts.FreePort(t)}
	s.address = fmt.Sprintf("127.0.0.1:%d", ports[0])
	var err error
	if s.process, err = parts.IstiodCommand(folder, "", parts.ShortDir(t), ports); err != nil {
		t.Fatal(err)
	}
}

func (s *discoveryServer) stop() {
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
}

// processor returns the processor time used so far.
func (s *discoveryServer) processor(t *stage) time.Duration {
	t.Helper()
	return time.Duration(ticks(t, s.process.Process.Pid)) * 10 * time.Millisecond
}

// peak returns the peak resident memory in bytes.
func (s *discoveryServer) peak(t *stage) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.process.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kilobytes int
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kilobytes); n == 1 {
			return kilobytes << 10
		}
	}
	return 0
}
