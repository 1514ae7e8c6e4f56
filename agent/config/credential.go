package config

import (
	"path/filepath"
	"strings"
)

// credentialPrefix begins a value that names a systemd credential instead of a file.
const credentialPrefix = "credential:"

// IsCredential tells whether the path of a key is the name of a credential still: with CheckOnly it is, as there is no unit to have it from.
func IsCredential(path string) bool { return strings.HasPrefix(path, credentialPrefix) }

// FromCredential tells whether the file that a key names is one of systemd's credentials, which are never written to a disk.
func (l *Loaded) FromCredential(path string) bool {
	return l.credentials != "" && filepath.Dir(path) == filepath.Clean(l.credentials)
}

// credentials finds systemd's credentials.
type credentials struct {
	folder    string // $CREDENTIALS_DIRECTORY, "" if there is none
	elsewhere bool   // the configuration is only looked at, not run: names stay names
}

func (c credentials) file(name string) (string, *problem) {
	switch {
	case name == "" || name == "." || name == ".." || strings.Contains(name, "/"):
		return "", problemf("write credential:NAME with the NAME of LoadCredential= in the unit",
			"%s does not name a credential", quote(credentialPrefix+name))
	case c.elsewhere:
		return credentialPrefix + name, nil
	case c.folder == "":
		return "", problemf("name a file, or run under systemd with LoadCredential="+name+":FILE in the unit",
			"%s cannot be read: $CREDENTIALS_DIRECTORY is not set", quote(credentialPrefix+name))
	default:
		return filepath.Join(c.folder, name), nil
	}
}
