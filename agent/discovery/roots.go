package discovery

import "os"

// systemRootFiles are where distributions keep the authorities that the system trusts: those of
// Debian and its like, Fedora and RHEL, openSUSE, Alpine.
var systemRootFiles = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// systemRoots is the file of the authorities that the system trusts. Where there is none it is the
// first of the usual ones: Envoy then refuses what needs it, and nobody goes unchecked.
func systemRoots() string {
	for _, path := range systemRootFiles {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return systemRootFiles[0]
}
