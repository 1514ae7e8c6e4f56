package discovery_test

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/sockdiag"
)

// TestStrict_WarnsOfApplicationsPastEnvoy has applications that listen on loopback or on all
// addresses.
func TestStrict_WarnsOfApplicationsPastEnvoy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	for _, c := range []struct {
		address, mode string
		warns         bool
	}{
		{"127.0.0.1:0", "STRICT", false},
		{"0.0.0.0:0", "STRICT", true},
		{"0.0.0.0:0", "PERMISSIVE", false},
		{"[::]:0", "STRICT", true},
	} {
		listener, err := net.Listen("tcp", c.address)
		must(t, err)
		defer listener.Close()
		port := listener.Addr().(*net.TCPAddr).Port
		write(t, file, fmt.Sprintf(onePort, 7301, port, "", c.mode))
		problems, err := discovery.Check([]string{file}, discovery.CheckOptions{Identity: true,
			Listening: sockdiag.ListeningAddresses()})
		must(t, err)
		want := fmt.Sprintf("where clients reach it without the mutual TLS that "+
			"PeerAuthentication default/default at %s:", file)
		if len(problems) > 0 != c.warns || c.warns && !strings.Contains(problems[0].Message, want) {
			t.Errorf("%s, %s: %v", c.address, c.mode, problems)
		}
	}
}
