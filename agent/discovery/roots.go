package discovery

import "os"

// systemRootFiles are the CA bundles of Debian, Fedora and RHEL, openSUSE, and Alpine.
var systemRootFiles = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// systemRoots returns the path of the system's CA bundle. If there is none, it returns the first
// usual path, so that Envoy refuses resources that need it and no certificate goes unverified.
func systemRoots() string {
	for _, path := range systemRootFiles {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return systemRootFiles[0]
}
