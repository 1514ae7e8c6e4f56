package discovery

import "os"

// systemRootFiles are the paths of the CA bundle on Debian, Fedora and RHEL, openSUSE, and Alpine.
var systemRootFiles = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// systemRoots returns the path of the system's CA bundle. If there is none, it returns the first of
// the usual paths: Envoy then refuses resources that need the bundle, so that no certificate
// remains unverified.
func systemRoots() string {
	for _, path := range systemRootFiles {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return systemRootFiles[0]
}
