// Package catalog runs Consul servers in development mode for tests, and changes their catalogue.
package catalog

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// startTimeout bounds the time until a Consul server has elected itself as the leader.
const startTimeout = 30 * time.Second

// ManagementToken is a token with all rights for a Consul server with access control.
const ManagementToken = "00000000-0000-0000-0000-00000000d150"

// find returns the path of Consul. The first call builds it, which takes minutes.
var find = sync.OnceValues(func() (string, error) {
	out, err := exec.Command(filepath.Join(parts.RepositoryRoot(), "scripts",
		"get-consul")).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("get Consul: %w: %s", err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
})

// Consul is a running Consul server, whose catalogue is in memory and initially empty.
type Consul struct {
	*parts.Process
	Address string // of the form http://127.0.0.1:PORT
	options Options
}

// Options are the options of a Consul server.
type Options struct {
	Port int  // port of the HTTP API; 0: a free port
	ACL  bool // enables access control; see ManagementToken

	Datacenter string  // name of the datacentre; "": dc1
	Join       *Consul // server of another datacentre to join; nil: none

	// Ports for RPC, gossip within the datacentre and gossip between datacentres; "": a free port.
	rpc, lan, wan string
}

// Start starts a Consul server and waits until it has a leader. The server is killed when the test
// ends.
func Start(t testing.TB, o Options) *Consul {
	t.Helper()
	c := startWithoutLeader(t, o)
	parts.Eventually(t, startTimeout, "Consul has a leader", c.leads)
	return c
}

// startWithoutLeader starts a Consul server like Start, but does not wait for the leader.
func startWithoutLeader(t testing.TB, o Options) *Consul {
	t.Helper()
	program, err := find()
	if err != nil {
		t.Fatal(err)
	}
	if o.Port == 0 {
		o.Port = parts.FreePort(t)
	}
	config := `performance { raft_multiplier = 1 } disable_update_check = true `
	if o.ACL {
		config += `acl { enabled = true default_policy = "deny" tokens { initial_management = "` +
			ManagementToken + `" } }`
	}
	for _, port := range []*string{&o.rpc, &o.lan, &o.wan} {
		if *port == "" {
			*port = strconv.Itoa(parts.FreePort(t))
		}
	}
	command := exec.Command(program, "agent", "-dev", "-node", "server", "-bind", "127.0.0.1",
		"-log-level", "warn", "-http-port", strconv.Itoa(o.Port), "-server-port", o.rpc,
		"-serf-lan-port", o.lan, "-serf-wan-port", o.wan, "-dns-port", "-1", "-grpc-port", "-1",
		"-grpc-tls-port", "-1", "-hcl", config, "-datacenter", cmp.Or(o.Datacenter, "dc1"))
	if o.Join != nil {
		command.Args = append(command.Args, "-retry-join-wan", "127.0.0.1:"+o.Join.options.wan)
	}
	return &Consul{Process: parts.StartProcess(t, command), options: o,
		Address: fmt.Sprintf("http://127.0.0.1:%d", o.Port)}
}

// Restart kills the Consul server and starts another one, with an empty catalogue, at the same
// address.
func (c *Consul) Restart(t testing.TB) *Consul {
	t.Helper()
	c.Kill()
	return Start(t, c.options)
}

// leads reports whether the server has elected a leader and registered itself in the catalogue.
func (c *Consul) leads() bool {
	var nodes []any
	return c.call(http.MethodGet, "/v1/catalog/service/consul", nil, &nodes) == nil && len(nodes) > 0
}

// Do sends a request to Consul's HTTP API, with ManagementToken if access control is enabled. body
// is encoded as JSON, and the response is decoded into answer; both may be nil.
func (c *Consul) Do(t testing.TB, method, path string, body, answer any) {
	t.Helper()
	if err := c.call(method, path, body, answer); err != nil {
		t.Fatal(err)
	}
}

func (c *Consul) call(method, path string, body, answer any) error {
	var text []byte
	var err error
	if body != nil {
		if text, err = json.Marshal(body); err != nil {
			return fmt.Errorf("%s %s: %w", method, path, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, c.Address+path, bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if c.options.ACL {
		request.Header.Set("X-Consul-Token", ManagementToken)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer func() { _ = response.Body.Close() }()
	got, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, got)
	}
	if err == nil && answer != nil {
		err = json.Unmarshal(got, answer)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}
