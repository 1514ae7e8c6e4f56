package translate

import (
	"path/filepath"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"outrider.org/outrider/agent/resource"
)

// FileSecret is a certificate with its key, or authorities, in files that Envoy reads by itself: a
// renewed certificate changes no listener, and no key travels.
type FileSecret struct {
	Certificate, Key     string // of a certificate
	Authorities, Revoked string // of authorities; Revoked is a CRL and may be ""
}

// Name is Istio's: file-cert:CERTIFICATE~KEY, file-root:AUTHORITIES.
func (s FileSecret) Name() string {
	switch {
	case s.Authorities == "":
		return "file-cert:" + s.Certificate + "~" + s.Key
	case s.Revoked == "":
		return "file-root:" + s.Authorities
	}
	return "file-root:" + s.Authorities + "~" + s.Revoked
}

// Files are those that Envoy reads for the secret.
func (s FileSecret) Files() []string {
	switch {
	case s.Authorities == "":
		return []string{s.Certificate, s.Key}
	case s.Revoked == "":
		return []string{s.Authorities}
	}
	return []string{s.Authorities, s.Revoked}
}

// Resource is the secret as Envoy asks for it by name. Envoy reads the files when it is given a
// secret other than the one it has, and of itself only when something is renamed into their folder;
// so fingerprint stands for what they hold, where somebody knows it (else 0), and makes the secret
// another when that changes.
func (s FileSecret) Resource(fingerprint uint32, origins ...resource.Origin) (*resource.Resource,
	error) {
	out := &tlsv3.Secret{Name: s.Name()}
	if s.Authorities == "" {
		certificate := &tlsv3.TlsCertificate{CertificateChain: file(s.Certificate),
			PrivateKey: file(s.Key), WatchedDirectory: watched(s.Certificate, s.Key)}
		certificate.CertificateChain.WatchedDirectory = spelled(filepath.Dir(s.Certificate),
			fingerprint)
		out.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: certificate}
		return resource.New(out.Name, out, compact(origins)...)
	}
	check := &tlsv3.CertificateValidationContext{TrustedCa: file(s.Authorities),
		WatchedDirectory: watched(s.Authorities, s.Revoked)}
	check.TrustedCa.WatchedDirectory = spelled(filepath.Dir(s.Authorities), fingerprint)
	if s.Revoked != "" {
		check.Crl = file(s.Revoked)
	}
	out.Type = &tlsv3.Secret_ValidationContext{ValidationContext: check}
	return resource.New(out.Name, out, compact(origins)...)
}

// watched is the folder of both files: of a folder of symbolic links the whole is replaced, not the
// files. Envoy watches the folders of files by itself where there are two.
func watched(path, other string) *corev3.WatchedDirectory {
	folder := filepath.Dir(path)
	if other != "" && filepath.Dir(other) != folder {
		return nil
	}
	return &corev3.WatchedDirectory{Path: folder}
}

// spelled is a folder in the one of its many spellings that fingerprint stands for, each bit a "/"
// or a "/." at its end; nil for 0. A secret has no field for a version. This one is beside the
// point in a secret (Envoy watches for the secret as a whole), and true all the same.
func spelled(folder string, fingerprint uint32) *corev3.WatchedDirectory {
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

// secretSource names a secret that is served beside everything else. It is not waited for: what is
// wrong with one file would hold back the whole listener.
func secretSource(s FileSecret) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: s.Name(), SdsConfig: adsSource(secretWait)}
}
