package resolved

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/rpc"
	"outrider.org/outrider/scripts/parts"
)

// serving runs ServeHelper and returns the agent's end of its connection.
func serving(t *testing.T) (net.Conn, <-chan error) {
	t.Helper()
	near, far := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- ServeHelper(far) }()
	t.Cleanup(func() { _ = near.Close() })
	return near, served
}

func TestServe_AnswersAgentsOfEarlierVersions(t *testing.T) {
	agent, served := serving(t)
	go func() { _, _ = io.WriteString(agent, `{"Server":"127.0.0.1:53","Domains":["a"]}`+"\n") }()
	answer, err := io.ReadAll(agent)
	if err != nil || !strings.Contains(string(answer), `"Error":"outrider-resolved is of a later`) {
		t.Errorf("%q, %v", answer, err)
	}
	if err := <-served; !errors.Is(err, rpc.ErrUnframed) {
		t.Error(err)
	}
}

func TestServe_RefusesOtherProtocols(t *testing.T) {
	agent, served := serving(t)
	connection := rpc.NewConn(agent)
	if err := connection.Send(t.Context(), request{Protocol: 2, Number: 7}); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(agent)
	const want = "protocol version 2 is not supported; this outrider-resolved has version 1"
	if err != nil || !strings.Contains(string(answer), want) {
		t.Errorf("%q, %v", answer, err)
	}
	if err := <-served; err == nil || err.Error() != want {
		t.Error(err)
	}
}

// Without systemd-resolved the agent receives the error message of resolvectl.
func TestApply_ReportsErrors(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "resolved.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	client, err := Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	host, served := parts.NewOtherHost(t), make(chan error, 1)
	go func() {
		parts.InNamespace(t, host.Namespace(), func() { served <- ServeHelper(accepted) })
	}()
	if err := client.Apply(t.Context(), DNSRoute{Domains: []string{"a.test"}}); err == nil ||
		!strings.Contains(err.Error(), "resolvectl") {
		t.Error(err)
	}
	<-served
	<-client.Done()
	if err := client.Apply(t.Context(), DNSRoute{}); !errors.Is(err, ErrHelperEnded) {
		t.Error(err)
	}
}
