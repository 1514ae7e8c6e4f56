package parts

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// StartIstiod runs IstiodCommand with additional environment variables and returns when istiod
// serves. istiod is killed when the test ends or end is called. About one istiod in 150 never reads
// the endpoints in the folder; StartIstiod replaces such an istiod. Proxies therefore connect to a
// forwarder, which listens on ports[0] only after istiod has endpoints.
func StartIstiod(t testing.TB, folder, meshConfig string, ports [3]int, environment ...string) (
	end func()) {
	t.Helper()
	public, hidden := fmt.Sprintf("127.0.0.1:%d", ports[0]), FreePort(t)
	ports[0] = hidden
	for range 5 {
		command, err := IstiodCommand(folder, meshConfig, t.TempDir(), ports)
		if err != nil {
			t.Fatal(err)
		}
		command.Env = append(command.Env, environment...)
		process := StartProcess(t, command)
		address := fmt.Sprintf("127.0.0.1:%d", hidden)
		Eventually(t, time.Minute, "istiod listens", func() bool {
			connection, err := net.Dial("tcp", address)
			if err == nil {
				_ = connection.Close()
			}
			return err == nil
		})
		files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if len(files) > 0 && !Poll(10*time.Second, func() bool { return hasEndpoints(ports[1]) }) {
			process.Kill()
			continue
		}
		listener, err := net.Listen("tcp", public)
		if err != nil {
			t.Fatal(err)
		}
		stop := ForwardConnections(t, listener, address)
		return sync.OnceFunc(func() { stop(); process.Kill() })
	}
	t.Fatal("istiod never has endpoints")
	return nil
}

// hasEndpoints reports whether the istiod with an HTTP port has read endpoints of services.
func hasEndpoints(port int) bool {
	answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/debug/endpointShardz", port))
	if err != nil {
		return false
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	return err == nil && len(text) > len("{}\n")
}
