package discovery_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery"
)

func TestCheck_MissingCredentials(t *testing.T) {
	directory, folder := t.TempDir(), t.TempDir()
	write(t, filepath.Join(directory, "edge.yaml"), `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  servers:
  - port: {number: 443, name: https, protocol: HTTPS}
    hosts: ["*"]
    tls: {mode: MUTUAL, credentialName: web}
`)
	denied := ""
	check := func() string {
		t.Helper()
		problems, err := discovery.Check([]string{directory}, discovery.CheckOptions{NodeType: "router",
			Namespace: "shop", AgentReadCheck: func(path string) string {
				if filepath.Base(path) == "tls.key" {
					return denied
				}
				return ""
			}, FilesAreLocal: true, Credentials: discovery.CredentialLocation{Folder: folder}})
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, p := range problems {
			all = append(all, string(p.Severity)+" "+strings.TrimPrefix(p.String(), directory+"/"))
		}
		return strings.Join(all, "\n")
	}
	got := check()
	for _, file := range []string{"tls.crt", "ca.crt"} {
		want := "error edge.yaml:1: Gateway shop/edge: " + filepath.Join(folder, "web", file) +
			" does not exist"
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if err := os.Mkdir(filepath.Join(folder, "web"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"tls.crt", "tls.key", "ca.crt"} {
		write(t, filepath.Join(folder, "web", file), "")
	}
	if got := check(); got != "" {
		t.Errorf("with the files: %s", got)
	}
	denied = "the agent may not read it"
	if got := check(); got != "error edge.yaml:1: Gateway shop/edge: "+denied {
		t.Errorf("with a key that the agent may not read: %s", got)
	}
	denied = ""
	own := filepath.Join(folder, "web-cacert")
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := check(); !strings.Contains(got, own+"/ca.crt (used instead of ") {
		t.Errorf("with an empty folder that precedes web/ca.crt: %s", got)
	}
}
