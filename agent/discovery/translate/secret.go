package translate

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"outrider.org/outrider/agent/credential"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/resource"
)

// ConfiguredSecret names a certificate with its key, or CA certificates. Envoy reads files itself,
// so that a renewed certificate changes no listener and keys stay in their files. The agent reads
// credentials and serves them over SDS, unless Envoy gets them from an SDS server of the host.
type ConfiguredSecret struct {
	Certificate, Key            string // files of a certificate chain and its key
	Authorities, RevocationList string // files of CA certificates and an optional CRL

	Credential string                  // name of a credential's secret; "": the secret is in files
	Location   mesh.CredentialLocation // where the credential is stored
}

// pairOf and rootsOf return the secrets of a credential: its certificate with key, and its CA
// certificates.
func pairOf(name string, m *mesh.Config) ConfiguredSecret {
	return ConfiguredSecret{Credential: credential.KeyPairSecretName(name), Location: m.Credentials}
}

func rootsOf(name string, m *mesh.Config) ConfiguredSecret {
	return ConfiguredSecret{Credential: credential.RootsSecretName(name), Location: m.Credentials}
}

// Name returns Istio's name of the secret: file-cert:CERTIFICATE~KEY, file-root:AUTHORITIES,
// kubernetes://NAME or sds://NAME.
func (s ConfiguredSecret) Name() string {
	switch {
	case s.Credential != "":
		return s.Credential
	case s.Authorities == "":
		return "file-cert:" + s.Certificate + "~" + s.Key
	case s.RevocationList == "":
		return "file-root:" + s.Authorities
	}
	return "file-root:" + s.Authorities + "~" + s.RevocationList
}

// IsFromExternalSDSServer reports whether an SDS server of the host has the secret.
func (s ConfiguredSecret) IsFromExternalSDSServer() bool {
	return credential.IsExternalSDSSecret(s.Credential)
}

// CredentialFiles returns the files of a credential; ok is false if the secret is not from a
// credential, or its files are unknown.
func (s ConfiguredSecret) CredentialFiles() (files credential.Files, ok bool) {
	if s.Credential == "" || s.Location.Folder == "" {
		return credential.Files{}, false
	}
	files, err := credential.LocateFiles(s.Location.Folder, s.Credential)
	return files, err == nil
}

// Files returns the files that the secret is read from. For the CA certificates of a credential it
// includes the folder, because its content determines which file is used. For a secret of the
// host's SDS server it returns the server's socket.
func (s ConfiguredSecret) Files() []string {
	switch {
	case s.IsFromExternalSDSServer():
		if s.Location.Socket == "" {
			return nil
		}
		return []string{s.Location.Socket}
	case s.Credential != "":
		files, ok := s.CredentialFiles()
		if !ok {
			return nil
		}
		paths := slices.Concat(files.RequiredAlternatives()...)
		if folder := files.AuthoritiesFolder(); folder != "" {
			paths = append(paths, folder)
		}
		return paths
	case s.Authorities == "":
		return []string{s.Certificate, s.Key}
	case s.RevocationList == "":
		return []string{s.Authorities}
	}
	return []string{s.Authorities, s.RevocationList}
}

// Resource returns the secret resource that refers to the files. Envoy reads them when it receives
// a different secret, and when a file is renamed into their directory. So the resource contains a
// fingerprint of the files' content (0: unknown), and differs whenever the content changes.
func (s ConfiguredSecret) Resource(fingerprint uint32, origins ...resource.Origin) (*resource.Resource,
	error) {
	out := &tlsv3.Secret{Name: s.Name()}
	if s.Authorities == "" {
		certificate := &tlsv3.TlsCertificate{CertificateChain: file(s.Certificate),
			PrivateKey: file(s.Key), WatchedDirectory: watched(s.Certificate, s.Key)}
		certificate.CertificateChain.WatchedDirectory = fingerprintPath(filepath.Dir(s.Certificate),
			fingerprint)
		out.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: certificate}
		return resource.New(out.Name, out, compact(origins)...)
	}
	check := &tlsv3.CertificateValidationContext{TrustedCa: file(s.Authorities),
		WatchedDirectory: watched(s.Authorities, s.RevocationList)}
	check.TrustedCa.WatchedDirectory = fingerprintPath(filepath.Dir(s.Authorities), fingerprint)
	if s.RevocationList != "" {
		check.Crl = file(s.RevocationList)
	}
	out.Type = &tlsv3.Secret_ValidationContext{ValidationContext: check}
	return resource.New(out.Name, out, compact(origins)...)
}

// watched returns the directory that Envoy watches for both files; nil if their directories differ.
// In a directory of symbolic links, such as a Kubernetes mount, the directory changes as a whole.
func watched(path, other string) *corev3.WatchedDirectory {
	folder := filepath.Dir(path)
	if other != "" && filepath.Dir(other) != folder {
		return nil
	}
	return &corev3.WatchedDirectory{Path: folder}
}

// fingerprintPath encodes a fingerprint in the spelling of a directory's path: each bit appends "/"
// or "/.". It returns nil for 0. The path is used because secrets have no field for a version.
func fingerprintPath(folder string, fingerprint uint32) *corev3.WatchedDirectory {
	if fingerprint == 0 {
		return nil
	}
	var path strings.Builder
	path.WriteString(folder)
	for ; fingerprint != 0; fingerprint >>= 1 {
		path.WriteString([2]string{"/", "/."}[fingerprint&1])
	}
	return &corev3.WatchedDirectory{Path: path.String()}
}

func file(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}

// secretSource returns a reference to a secret that is served on the ADS stream, or to a
// credential. Envoy does not wait for the secret, so that a bad file does not delay the whole
// listener. Incremental SDS lets Envoy notice at once that a credential does not exist; the host's
// SDS server may not support it. If the host has no SDS server, the agent answers that the
// credential does not exist.
func secretSource(s ConfiguredSecret) *tlsv3.SdsSecretConfig {
	if s.Credential != "" {
		out := secret(s.Credential)
		api := out.SdsConfig.GetApiConfigSource()
		if s.IsFromExternalSDSServer() && s.Location.Socket != "" {
			api.GrpcServices[0].GetEnvoyGrpc().ClusterName = credential.ExternalSDSClusterName
			return out
		}
		api.ApiType = corev3.ApiConfigSource_DELTA_GRPC
		api.GrpcServices[0].GetEnvoyGrpc().ClusterName = cmp.Or(s.Location.Cluster, secretCluster)
		return out
	}
	return &tlsv3.SdsSecretConfig{Name: s.Name(), SdsConfig: adsSource(secretWait)}
}
