package translate

import (
	"path/filepath"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"outrider.org/outrider/agent/resource"
)

// FileSecret is a certificate with its key, or authorities, in files that Envoy reads by itself, and again when one of
// them is replaced by a rename: a renewed certificate changes no listener. Outrider never sees a key.
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

// Resource is the secret as Envoy asks for it by name.
func (s FileSecret) Resource(origins ...resource.Origin) (*resource.Resource, error) {
	out := &tlsv3.Secret{Name: s.Name()}
	if s.Authorities == "" {
		out.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: file(s.Certificate), PrivateKey: file(s.Key),
			WatchedDirectory: watched(s.Certificate, s.Key)}}
		return resource.New(out.Name, out, compact(origins)...)
	}
	check := &tlsv3.CertificateValidationContext{TrustedCa: file(s.Authorities), WatchedDirectory: watched(s.Authorities, s.Revoked)}
	if s.Revoked != "" {
		check.Crl = file(s.Revoked)
	}
	out.Type = &tlsv3.Secret_ValidationContext{ValidationContext: check}
	return resource.New(out.Name, out, compact(origins)...)
}

// watched is the folder of both files: of a folder of symbolic links the whole is replaced, not the files. Envoy watches
// the folders of files by itself where there are two.
func watched(path, other string) *corev3.WatchedDirectory {
	folder := filepath.Dir(path)
	if other != "" && filepath.Dir(other) != folder {
		return nil
	}
	return &corev3.WatchedDirectory{Path: folder}
}

func file(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}

// secretSource names a secret that is served beside everything else. It is not waited for: what is wrong with one file
// would hold back the whole listener.
func secretSource(s FileSecret) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: s.Name(), SdsConfig: adsSource(secretWait)}
}
