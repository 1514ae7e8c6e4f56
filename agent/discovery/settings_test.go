package discovery_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

func TestAccessLogs(t *testing.T) {
	directory := t.TempDir()
	write(t, filepath.Join(directory, "web.yaml"), fmt.Sprintf(webEntry, "web", "10.0.0.1"))
	server, _ := start(t, discovery.Options{Files: []string{directory}})
	feed := feedOf(t, server, "sidecar")
	before, _ := feed.Current()
	for _, test := range []struct {
		log   discovery.AccessLog
		wrong string
	}{
		{discovery.AccessLog{File: "relative.log"}, "not an absolute path"},
		{discovery.AccessLog{File: "/dev/stdout", Format: `{"a": `}, "not a JSON object"},
		{discovery.AccessLog{File: "/dev/stdout", Format: `{"path": "%REQ(:PATH)%"}`}, ""},
		{discovery.AccessLog{File: "/dev/stdout", Format: "%REQ(:PATH)%"}, ""},
	} {
		err := server.Configure(discovery.Settings{AccessLog: test.log})
		if (err != nil) != (test.wrong != "") || err != nil && !strings.Contains(err.Error(),
			test.wrong) {
			t.Errorf("%+v: %v", test.log, err)
		}
	}
	keys, _ := feed.ChangedSince(before.Sequence)
	for _, key := range keys {
		if key.Type != resource.ListenerType {
			t.Errorf("an access log changed %v", key)
		}
	}
	if len(keys) != 2 {
		t.Errorf("changed %v", keys)
	}
}

func TestNodes(t *testing.T) {
	server, _ := start(t, discovery.Options{})
	redirect, err := structpb.NewStruct(map[string]any{"INTERCEPTION_MODE": "EBPF"})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		node  *corev3.Node
		wrong string
	}{
		{&corev3.Node{Id: "sidecar~10.0.0.1~vm.ns~ns.svc.cluster.local"}, ""},
		{&corev3.Node{Id: "router~10.0.0.1~vm~example.com"}, ""},
		{&corev3.Node{Id: "vm"}, "not of the form type~ip~name~domain"},
		{&corev3.Node{Id: "ztunnel~10.0.0.1~vm~x"}, "neither sidecar nor router"},
		{&corev3.Node{Id: "sidecar~10.0.0.1~vm~x", Metadata: redirect},
			`interception mode "EBPF" is not REDIRECT`},
		{nil, "not of the form"},
	} {
		_, err := server.Feed(test.node)
		if (err != nil) != (test.wrong != "") || err != nil && !strings.Contains(err.Error(),
			test.wrong) {
			t.Errorf("%v: %v", test.node, err)
		}
	}
}

// TestMeshConfig_FollowsFile changes the MeshConfig file while the server runs. Valid changes take
// effect; after an invalid one, the previous MeshConfig stays in force.
func TestMeshConfig_FollowsFile(t *testing.T) {
	directory := t.TempDir()
	file := filepath.Join(directory, "mesh.yml")
	mesh := filepath.Join(directory, "mesh")
	if err := os.Mkdir(mesh, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(mesh, "web.yaml"), fmt.Sprintf(webEntry, "web", "10.0.0.1"))
	write(t, file, "connectTimeout: 1s\n")
	server, changes := start(t, discovery.Options{Files: []string{mesh},
		Settings: discovery.Settings{MeshConfigFile: file}})
	feed := feedOf(t, server, "sidecar")
	timeout := func() time.Duration {
		snapshot, _ := feed.Current()
		var cluster clusterv3.Cluster
		if err := proto.Unmarshal(snapshot.ByType(resource.ClusterType)["outbound|80||web.test"].
			EncodedMessage(), &cluster); err != nil {
			t.Fatal(err)
		}
		return cluster.ConnectTimeout.AsDuration()
	}
	if got := timeout(); got != time.Second {
		t.Errorf("connect timeout %v", got)
	}
	for _, step := range []struct {
		content string
		want    time.Duration
		problem string
	}{
		{"connectTimeout: 2s\n", 2 * time.Second, ""},
		{"connectTimeout: two\n", 2 * time.Second, "mesh.yml:1: connectTimeout"},
		{"connectTimeout: 3s\nenablePrometheusMerge: true\n", 3 * time.Second,
			"mesh.yml:2: enablePrometheusMerge"},
		{"", 10 * time.Second, ""},
	} {
		write(t, file, step.content)
		changes <- []string{file}
		changes <- nil // the server receives this once it has processed the previous change
		if got := timeout(); got != step.want {
			t.Errorf("%q: connect timeout %v, want %v", step.content, got, step.want)
		}
		problems := server.Problems()
		if (len(problems) > 0) != (step.problem != "") || len(problems) > 0 &&
			!strings.Contains(problems[0].String(), step.problem) {
			t.Errorf("%q: problems %v, want %q", step.content, problems, step.problem)
		}
	}
	if err := server.Configure(discovery.Settings{}); err != nil || timeout() != 10*time.Second {
		t.Errorf("without a file: %v, %v", err, timeout())
	}
}

// TestServer_TrustDomainsAreThoseOfMeshConfig: TrustDomains returns the default trust domain, and
// those of MeshConfig once the settings name its file.
func TestServer_TrustDomainsAreThoseOfMeshConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, file, "trustDomain: a.test\ntrustDomainAliases: [b.test]\n")
	server, err := discovery.New(discovery.Options{Files: []string{t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	before := server.TrustDomains()
	if err := server.Configure(discovery.Settings{MeshConfigFile: file}); err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(before, server.TrustDomains())
	if want := "[cluster.local] [a.test b.test]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
