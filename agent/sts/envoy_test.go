package sts

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/local"
	"google.golang.org/grpc/metadata"

	"outrider.org/outrider/scripts/parts"
)

// bootstrap configures an Envoy whose ADS stream uses google_grpc with an STS service. Call
// credentials require a secure channel, and local credentials on a Unix socket count as secure.
const bootstrap = `{
  "node": {"id": "sts", "cluster": "test"},
  "dynamic_resources": {"cds_config": {"ads": {}, "resource_api_version": "V3"},
    "ads_config": {"api_type": "GRPC", "transport_api_version": "V3", "grpc_services": [{"google_grpc": {
      "target_uri": "unix:%s", "stat_prefix": "ads",
      "channel_credentials": {"local_credentials": {}},
      "call_credentials": [{"sts_service": {"token_exchange_service_uri": "%s/token",
        "subject_token_path": %q, "subject_token_type": %q, "scope": %q}}]}}]}}
}`

// adsServer sends the authorization header of each stream to a channel.
type adsServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	authorizations chan string
}

func (s *adsServer) StreamAggregatedResources(
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer,
) error {
	received, _ := metadata.FromIncomingContext(stream.Context())
	select {
	case s.authorizations <- strings.Join(received.Get("authorization"), ","):
	default:
	}
	<-stream.Context().Done()
	return nil
}

func TestToken_EnvoyUsesIt(t *testing.T) {
	for _, c := range []struct{ name, content, want string }{
		{"its own token", "token-of-envoy", "token-of-envoy"},
		{"the agent's token file", "", "token-of-the-agent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			folder := t.TempDir()
			agents, envoys := filepath.Join(folder, "agent"), filepath.Join(folder, "envoy")
			for path, token := range map[string]string{agents: "token-of-the-agent",
				envoys: c.content} {
				if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			r := start(t, agents)
			got := authorizationOfEnvoy(t, r.url, envoys)
			if got != "Bearer "+federated {
				t.Errorf("Envoy's stream has the authorization %q", got)
			}
			if form := r.google.received()[0]; form.Get("subject_token") != c.want ||
				form.Get("scope") != cloudPlatform {
				t.Errorf("Google received %v", form)
			}
		})
	}
}

// authorizationOfEnvoy starts an Envoy and returns the authorization header of its ADS stream.
func authorizationOfEnvoy(t *testing.T, url, subjectFile string) string {
	t.Helper()
	socket := filepath.Join(parts.ShortDir(t), "ads.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ads := &adsServer{authorizations: make(chan string, 1)}
	server := grpc.NewServer(grpc.Creds(local.NewCredentials()))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, ads)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	parts.StartProcess(t, exec.Command(parts.EnvoyPath(t), "--disable-hot-restart", "--concurrency",
		"1",
		"--config-yaml", fmt.Sprintf(bootstrap, socket, url, subjectFile, typeJWT, cloudPlatform)))
	select {
	case got := <-ads.authorizations:
		return got
	case <-time.After(30 * time.Second):
		t.Fatal("Envoy opens no ADS stream")
		return ""
	}
}
