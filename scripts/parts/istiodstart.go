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

// StartIstiod starts IstiodCommand with additional environment, and returns once istiod serves.
// istiod ends with the test, or when end is called. Proxies connect through a forwarder, which
// listens only once istiod has endpoints: about one istiod in 150 never reads those of the folder;
// StartIstiod replaces it.
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

// hasEndpoints reports whether the istiod whose HTTP port is given has endpoints of services.
func hasEndpoints(port int) bool {
	answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/debug/endpointShardz", port))
	if err != nil {
		return false
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	return err == nil && len(text) > len("{}\n")
}
