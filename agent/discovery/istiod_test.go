package discovery_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"outrider.org/outrider/scripts/parts"
)

// secretsCluster is the agent's cluster that istiod expects in the bootstrap.
const secretsCluster = `{
    "name": "sds-grpc", "type": "STATIC", "connect_timeout": "1s",
    "load_assignment": {"cluster_name": "sds-grpc", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": %s}}]}]},
    "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
      "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": {"http2_protocol_options": {}}}}
  }, `

// TestIstiod_GivesTheSameAnswers runs the cases of TestConformance with a real istiod and an Envoy.
// The responses must be the same, except for the differences that testdata/conformance/istiod lists
// with reasons. A listed difference that does not occur fails the test.
func TestIstiod_GivesTheSameAnswers(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	s := newSuite(t)
	differences := readDifferences(t, "sidecar", "router")
	for _, kind := range []string{"sidecar", "router"} { // proxies without an identity
		directory := t.TempDir()
		var cases []*conformanceCase
		for _, c := range s.cases(t, kind) {
			if _, left := differences[kind+"/"+c.name]["*"]; left {
				delete(differences[kind+"/"+c.name], "*")
				continue
			}
			cases = append(cases, c)
			write(t, filepath.Join(directory, c.name+".yaml"), inNamespace(t, c.mesh, "shop"))
		}
		// The proxy's address must not be that of an endpoint: istiod would assume that the proxy
		// is the endpoint's workload, and has its labels.
		admin := filepath.Join(parts.ShortDir(t), "admin.sock")
		text := fmt.Sprintf(bootstrap, kind, admin, startIstiod(t, directory, "enableAutoMtls: false"),
			fmt.Sprintf(secretsCluster, startSecrets(t, agentSecrets{})))
		e := startEnvoyOn(t, admin, strings.Replace(text, "~127.0.0.1~", "~10.255.0.1~", 1))
		e.listens(t)
		for _, c := range cases {
			known := differences[kind+"/"+c.name]
			t.Run(kind+"/"+c.name, func(t *testing.T) {
				c.askIstiods(t, e, s, filepath.Join(directory, c.name+".yaml"), known)
			})
		}
	}
	unasked(t, differences)
}

// askIstiods sends the requests of a case through an Envoy that an istiod configures from the
// objects in a file. known has the reasons for expected differences by the line of the request;
// askIstiods removes those for the lines of the case.
func (c *conformanceCase) askIstiods(t *testing.T, e *envoy, s *suite, file string,
	known map[string]string) {
	t.Helper()
	for _, x := range c.exchanges {
		if x.later {
			write(t, file, inNamespace(t, c.later, "shop"))
		}
		_, request, _ := strings.Cut(x.where, "requests, line ")
		reason, expected := known[request]
		delete(known, request)
		found := x.run(c.port)
		switch {
		case !expected:
			for _, difference := range found {
				t.Error(difference)
			}
			if len(found) == 0 {
				x.aside(t, e, s.backends)
			}
		case len(found) == 0 && !x.lacks(e, s.backends, 3*time.Second) &&
			!strings.HasPrefix(reason, "(not always) "):
			t.Errorf("%s: no difference, but one is listed: %s", x.where, reason)
		}
	}
}

// unasked fails the test if testdata/conformance/istiod lists a difference for a line that has no
// request. differences are the listed ones that no case has used.
func unasked(t *testing.T, differences map[string]map[string]string) {
	t.Helper()
	for name, left := range differences {
		for request := range left {
			t.Errorf("testdata/conformance/istiod: %s has no request at line %s", name, request)
		}
	}
}

// readDifferences returns the reasons for expected differences of the cases in some folders, by
// case and by the line of the request. Line "*" excludes a case.
func readDifferences(t *testing.T, folders ...string) map[string]map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "conformance", "istiod"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]string{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		where, reason, ok := strings.Cut(line, ": ")
		name, requests, ok2 := strings.Cut(where, " ")
		if !ok || !ok2 {
			t.Fatalf("testdata/conformance/istiod: %q is not of the form CASE LINE,…: REASON", line)
		}
		if folder, _, _ := strings.Cut(name, "/"); !slices.Contains(folders, folder) {
			continue
		}
		for request := range strings.SplitSeq(requests, ",") {
			if all[name] == nil {
				all[name] = map[string]string{}
			}
			all[name][request] = reason
		}
	}
	return all
}

// inNamespace adds the namespace of the cases to objects without one, because istiod has no default
// namespace for files.
func inNamespace(t *testing.T, mesh, namespace string) string {
	t.Helper()
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	decoder := yaml.NewDecoder(strings.NewReader(mesh))
	for {
		var object map[string]any
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			return out.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		if object == nil {
			continue
		}
		metadata, _ := object["metadata"].(map[string]any)
		if metadata != nil && metadata["namespace"] == nil {
			metadata["namespace"] = namespace
		}
		if err := encoder.Encode(object); err != nil {
			t.Fatal(err)
		}
	}
}

// startIstiod runs an istiod without Kubernetes on a directory until the test ends. It returns
// istiod's address in the form of a bootstrap (JSON of a core.v3.Address).
func startIstiod(t testing.TB, folder, meshConfig string) string {
	t.Helper()
	return fmt.Sprintf(`{"socket_address": {"address": "127.0.0.1", "port_value": %d}}`,
		startIstiodPort(t, folder, meshConfig))
}

// startIstiodPort does what startIstiod does, and returns the port.
func startIstiodPort(t testing.TB, folder, meshConfig string) int {
	t.Helper()
	ports := [3]int(freePorts(t, 3))
	istiod, err := parts.IstiodCommand(folder, meshConfig+"\n", t.TempDir(), ports)
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	istiod.Stdout, istiod.Stderr = &said, &said
	if err := istiod.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = istiod.Wait() }()
	t.Cleanup(func() { _ = istiod.Process.Kill(); <-ended })
	eventually(t, "istiod listens", func() (bool, string) {
		select {
		case <-ended:
			t.Fatalf("istiod ended: %s", said.String())
		default:
		}
		connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0]))
		if err != nil {
			return false, err.Error()
		}
		return true, fmt.Sprint(connection.Close())
	})
	return ports[0]
}
