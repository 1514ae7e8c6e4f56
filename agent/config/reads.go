package config

// KeyFile is a file whose path is the value of a configuration key.
type KeyFile struct{ Key, Path string }

// KeyFiles returns the files whose content is part of the configuration: bootstraps, certificates
// and tokens. Unresolved credentials (IsCredential) are omitted.
func (l *Loaded) KeyFiles() []KeyFile {
	var all []KeyFile
	add := func(key, path string) {
		if path != "" && !IsCredential(path) {
			all = append(all, KeyFile{key, path})
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
