package config

// FileOfKey is a file whose path is the value of a configuration key.
type FileOfKey struct{ Key, Path string }

// FilesOfKeys returns the files whose content is part of the configuration: bootstraps,
// certificates and tokens. It omits unresolved credentials (IsCredential).
func (l *Loaded) FilesOfKeys() []FileOfKey {
	var all []FileOfKey
	add := func(key, path string) {
		if path != "" && !IsCredential(path) {
			all = append(all, FileOfKey{key, path})
		}
	}
	for name, k := range settings(l.Config) {
		if !k.credentialAllowed {
			continue
		}
		switch value := k.get().(type) {
		case string:
			add(name, value)
		case []string:
			for _, path := range value {
				add(name, path)
			}
		}
	}
	return all
}
