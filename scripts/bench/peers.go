package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// The debounces of istiod that the time of a change is told without: the file source waits for 250
// ms, fixed (pkg/kube/krt/files), a push for PILOT_DEBOUNCE_AFTER.
const (
	istiodFileDebounce = 250 * time.Millisecond
	pushDebounce       = 100 * time.Millisecond // of both servers, their default
)

// discoveryServer is one that serves a folder of YAML.
type discoveryServer struct {
	address  string
	process  *exec.Cmd
	ready    time.Duration // from its exec until clients can connect
	debounce time.Duration // what a change of a file waits for, on purpose
	output   bytes.Buffer
}

// startServer runs the embedded server by itself, or istiod.
func startServer(t *stage, name, folder, programs string) *discoveryServer {
	t.Helper()
	s := &discoveryServer{}
	switch name {
	case "outrider":
		s.debounce = pushDebounce
		s.address = fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))
		s.process = exec.Command(filepath.Join(programs, "adsserve"), "-files", folder, "-listen",
			s.address)
	case "istiod":
		s.debounce = istiodFileDebounce + pushDebounce
		s.istiod(t, folder)
	}
	s.start(t)
	return s
}

// start runs the process until clients can connect.
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

// istiod makes its command line, as the peer's figures were taken.
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

// processor is what it used so far.
func (s *discoveryServer) processor(t *stage) time.Duration {
	t.Helper()
	return time.Duration(ticks(t, s.process.Process.Pid)) * 10 * time.Millisecond
}

// peak is the most memory it ever had, in bytes.
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
