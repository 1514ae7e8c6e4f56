package parts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
)

// IstiodCA describes a real istiod that is a CA and runs without Kubernetes.
type IstiodCA struct {
	Folder string   // contains the CA's ca-key.pem, ca-cert.pem, cert-chain.pem and root-cert.pem
	JWKS   string   // URL of the key set that verifies tokens
	Issuer string   // issuer of accepted tokens, whose audience is istio-ca
	Ports  [4]int   // on 127.0.0.1: plaintext, TLS (for localhost), HTTP, monitoring
	Env    []string // additional environment variables
}

// Command returns a command that runs istiod. It writes istiod's files into work.
func (i IstiodCA) Command(work string) (*exec.Cmd, error) {
	path, err := IstiodPath()
	if err != nil {
		return nil, err
	}
	mesh, empty := filepath.Join(work, "mesh.yaml"), filepath.Join(work, "none")
	if err := os.WriteFile(mesh, []byte("trustDomain: cluster.local\n"), 0o600); err != nil {
		return nil, fmt.Errorf("write istiod's MeshConfig: %w", err)
	}
	if err := os.MkdirAll(empty, 0o700); err != nil {
		return nil, fmt.Errorf("make istiod's folder: %w", err)
	}
	command := exec.Command(path, i.Arguments(work)...)
	command.Dir = work
	command.Env = append(os.Environ(), i.Environment()...)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return command, nil
}

// Arguments returns istiod's command line. work must contain the MeshConfig mesh.yaml and an empty
// folder none.
func (i IstiodCA) Arguments(work string) []string {
	at := func(n int) string { return fmt.Sprintf("127.0.0.1:%d", i.Ports[n]) }
	return []string{"discovery", "--configDir", filepath.Join(work, "none"), "--registries=",
		"--meshConfig", filepath.Join(work, "mesh.yaml"),
		"--networksConfig", filepath.Join(work, "none.yaml"),
		"--grpcAddr", at(0), "--secureGRPCAddr", at(1), "--httpAddr", at(2), "--httpsAddr=",
		"--monitoringAddr", at(3), "--ctrlz_port", "0"}
}

// Environment returns istiod's environment variables.
func (i IstiodCA) Environment() []string {
	rule := fmt.Sprintf(`{"issuer": %q, "jwks_uri": %q, "audiences": ["istio-ca"]}`,
		i.Issuer, i.JWKS)
	return slices.Concat(istiodEnvironment, []string{"ENABLE_CA_SERVER=true",
		"PILOT_CERT_PROVIDER=istiod", "ISTIOD_CUSTOM_HOST=localhost", "ROOT_CA_DIR=" + i.Folder,
		"JWT_RULE=" + rule}, i.Env)
}
