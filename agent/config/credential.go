package config

import (
	"path/filepath"
	"strings"
)

// credentialPrefix is the prefix of a value that names a systemd credential instead of a file.
const credentialPrefix = "credential:"

// IsCredential reports whether path is an unresolved reference to a systemd credential
// ("credential:NAME"). Load leaves references unresolved only with Options.CheckOnly.
func IsCredential(path string) bool { return strings.HasPrefix(path, credentialPrefix) }

// IsInCredentialsDir reports whether path is in systemd's credentials directory, which is never
// written to disk.
func (l *Loaded) IsInCredentialsDir(path string) bool {
	return l.credentials != "" && filepath.Dir(path) == filepath.Clean(l.credentials)
}

// credentials resolves references to systemd credentials.
type credentials struct {
	folder    string // $CREDENTIALS_DIRECTORY, "" if there is none
	elsewhere bool   // Options.CheckOnly: leave references unresolved
}

func (c credentials) file(name string) (string, *problem) {
	switch {
	case name == "" || name == "." || name == ".." || strings.Contains(name, "/"):
		return "", problemf("write credential:NAME with the NAME of LoadCredential= in the unit",
			"%s does not name a credential", quote(credentialPrefix+name))
	case c.elsewhere:
		return credentialPrefix + name, nil
	case c.folder == "":
		return "", problemf(
			"name a file, or run under systemd with LoadCredential="+name+":FILE in the unit",
			"%s cannot be read: $CREDENTIALS_DIRECTORY is not set", quote(credentialPrefix+name))
	default:
		return filepath.Join(c.folder, name), nil
	}
}
