package examples

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

func TestMain(m *testing.M) {
	code := m.Run()
	rig.RemovePrograms()
	os.Exit(code)
}

// sandbox is an installed Outrider with one example. It has its own network namespace, which has
// only loopback, and its own /etc. The test's servers and requests are in that network namespace.
type sandbox struct {
	t    *testing.T
	etc  string      // mounted over /etc
	dir  string      // folder for runtime and state files
	logs string      // mounted at /var/log/outrider
	work chan func() // functions to run in the sandbox's network namespace
}

// etcScript mounts a directory over /etc and executes its remaining arguments. Directories that
// change are bind mounts: an overlay does not report changes of its lower directory.
const etcScript = `mount -t overlay overlay -o "lowerdir=$1:/etc" /etc
mount --bind "$1/outrider" /etc/outrider
mkdir -p /var/log && mount -t tmpfs tmpfs /var/log && mkdir -p /var/log/outrider
mount --bind "$2" /var/log/outrider
shift 2 && exec "$@"`

// testSettings extends the package's configuration for tests.
const testSettings = `[envoy]
user = ""
concurrency = 1
termination_drain_duration = "100ms"
[bus]
enabled = false
`

// newSandbox installs an example as its comments say. The method start starts the agent.
func newSandbox(t *testing.T, name string) *sandbox {
	t.Helper()
	s := &sandbox{t: t, dir: parts.ShortDir(t), work: make(chan func())}
	s.etc, s.logs = filepath.Join(s.dir, "etc"), filepath.Join(s.dir, "log")
	if err := os.Mkdir(s.logs, 0o755); err != nil {
		t.Fatal(err)
	}
	s.enterNetwork()
	stub, err := os.ReadFile(filepath.Join(parts.RepositoryRoot(), "packaging", "outrider.toml"))
	if err != nil {
		t.Fatal(err)
	}
	s.write("outrider/outrider.toml", string(stub))
	s.write("outrider/conf.d/99-test.toml", testSettings)
	s.install(name)
	return s
}

// install copies the files of an example.
func (s *sandbox) install(name string) Example {
	s.t.Helper()
	example, err := FindExample(name)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, file := range example.Files {
		s.write(filepath.Join("outrider", file.Path), file.Text)
	}
	return example
}

// remove removes the files of an example, except the one that all examples share.
func (s *sandbox) remove(example Example) {
	s.t.Helper()
	for _, file := range example.Files {
		if file.Path == "conf.d/10-router.toml" {
			continue
		}
		if err := os.Remove(filepath.Join(s.etc, "outrider", file.Path)); err != nil {
			s.t.Fatal(err)
		}
	}
}

// outrider runs a command of outrider(1) and returns its output.
func (s *sandbox) outrider(arguments ...string) (string, error) {
	s.t.Helper()
	socket := filepath.Join(s.dir, "run", "outrider.sock")
	command := exec.CommandContext(s.t.Context(), rig.Build(s.t, false).Path("outrider"),
		append([]string{"--socket", socket}, arguments...)...)
	out, err := command.CombinedOutput()
	return string(out), err
}

// check fails the test if the mesh configuration has a problem other than a server that is down.
func (s *sandbox) check() {
	s.t.Helper()
	out, err := s.outrider("mesh", "check")
	problems := 0
	for line := range strings.Lines(out) {
		if !strings.Contains(line, " fails: connection refused") && !strings.Contains(line, "valid") {
			problems++
		}
	}
	if err != nil || problems > 0 {
		s.t.Errorf("outrider mesh check: %v: %s", err, out)
	}
}

// enterNetwork starts the goroutine whose thread is in the sandbox's network.
func (s *sandbox) enterNetwork() {
	s.t.Helper()
	entered := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := syscall.Unshare(syscall.CLONE_NEWNET)
		if err == nil {
			err = exec.Command("ip", "link", "set", "lo", "up").Run()
		}
		entered <- err
		for job := range s.work {
			job()
		}
	}()
	s.t.Cleanup(func() {
		close(s.work)
		<-ended
	})
	if err := <-entered; err != nil {
		s.t.Fatalf("make a network (as root, with the package iproute2): %v", err)
	}
}

// do runs a function in the sandbox's network.
func (s *sandbox) do(job func()) {
	done := make(chan struct{})
	s.work <- func() { defer close(done); job() }
	<-done
}

func (s *sandbox) write(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.etc, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// start runs outriderd as the package does, and returns once the proxy is ready.
func (s *sandbox) start() {
	s.t.Helper()
	programs := rig.Build(s.t, false)
	inEtc := []string{"--mount", "sh", "-ec", etcScript, "sh", s.etc, s.logs}
	command := exec.Command("unshare", append(inEtc, programs.Path("outriderd"))...)
	command.Env = []string{
		"PATH=" + filepath.Dir(parts.EnvoyPath(s.t)) + ":" + os.Getenv("PATH"),
		"RUNTIME_DIRECTORY=" + filepath.Join(s.dir, "run"),
		"STATE_DIRECTORY=" + filepath.Join(s.dir, "state"),
	}
	var log bytes.Buffer
	command.Stdout, command.Stderr = &log, &log
	var err error
	s.do(func() { err = command.Start() })
	if err != nil {
		s.t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- command.Wait() }()
	s.t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		if err := <-exited; err != nil {
			s.t.Errorf("outriderd: %v", err)
		}
		if s.t.Failed() {
			s.t.Logf("outriderd's log:\n%s", log.String())
		}
	})
	deadline := time.Now().Add(time.Minute)
	for {
		out, err := s.outrider("wait", "--timeout", "50s")
		if err == nil {
			break
		}
		if !strings.Contains(out, "not running") || time.Now().After(deadline) {
			s.t.Fatalf("outrider wait: %v: %s", err, out)
		}
	}
	s.check()
}

// listen opens a port in the sandbox. The listener is closed after the test.
func (s *sandbox) listen(address string) net.Listener {
	s.t.Helper()
	var listener net.Listener
	var err error
	s.do(func() { listener, err = net.Listen("tcp", address) })
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// backend serves HTTP at an address, or HTTPS with config.
func (s *sandbox) backend(address string, config *tls.Config, handler http.HandlerFunc) {
	s.t.Helper()
	listener := s.listen(address)
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	server := &http.Server{Handler: handler, ErrorLog: quiet()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // returns after Close
	}()
	s.t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
}

// dial connects to an address in the sandbox.
func (s *sandbox) dial(address string) (net.Conn, error) { return s.dialFrom("", address) }

func (s *sandbox) dialFrom(from, address string) (conn net.Conn, err error) {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	if from != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	s.do(func() { conn, err = dialer.Dial("tcp", address) })
	return conn, err
}

// answer is the answer to a request.
type answer struct {
	status int
	body   string
	header http.Header
}

// request is a request. to is the address that it is sent to, regardless of the URL.
type request struct {
	method, url, to string
	header          http.Header
	body            string
	preface         string // sent before TLS and HTTP
	from            string // the client's IP address; "": any
	tls             *tls.Config
	proxy           bool // the request line has the whole URL
}

// send sends a request on a new connection.
func (s *sandbox) send(r request) (answer, error) {
	s.t.Helper()
	transport := &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			conn, err := s.dialFrom(r.from, r.to)
			if err == nil && r.preface != "" {
				_, err = io.WriteString(conn, r.preface)
			}
			return conn, err
		},
		TLSClientConfig:   r.tls,
		DisableKeepAlives: true, DisableCompression: true,
	}
	defer transport.CloseIdleConnections()
	var body io.Reader
	if r.body != "" {
		body = strings.NewReader(r.body)
	}
	made, err := http.NewRequestWithContext(s.t.Context(), r.method, r.url, body)
	if err != nil {
		s.t.Fatal(err)
	}
	if r.header != nil {
		made.Header = r.header
	}
	if r.proxy {
		transport.Proxy = http.ProxyURL(parsed(s.t, "http://"+r.to))
	}
	response, err := transport.RoundTrip(made)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, string(text), response.Header}, err
}

// refuses fails the test if a request is answered.
func (s *sandbox) refuses(who string, r request) {
	s.t.Helper()
	if got, err := s.send(r); err == nil {
		s.t.Errorf("%s: %+v", who, got)
	}
}

// get sends a request that must be answered.
func (s *sandbox) get(r request) answer {
	s.t.Helper()
	got, err := s.send(r)
	if err != nil {
		s.t.Fatalf("%s %s: %v", r.method, r.url, err)
	}
	return got
}

// eventually polls until a condition holds.
func (s *sandbox) eventually(what string, holds func() bool) {
	s.t.Helper()
	parts.Eventually(s.t, time.Minute, what, holds)
}
