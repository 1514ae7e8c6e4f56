package config

// KeyFile is a file that a key names.
type KeyFile struct{ Key, Path string }

// KeyFiles are the files whose content counts as the configuration's own: bootstraps, certificates,
// tokens. Names of credentials (IsCredential) are left out.
func (l *Loaded) KeyFiles() []KeyFile {
	var all []KeyFile
	add := func(key, path string) {
		if path != "" && !IsCredential(path) {
			all = append(all, KeyFile{key, path})
		}
	}
	for _, t := range tables(l.Config) {
		for _, k := range t.keys {
			if !k.credentialAllowed {
				continue
			}
			switch value := k.get().(type) {
			case string:
				add(t.name+"."+k.name, value)
			case []string:
				for _, path := range value {
					add(t.name+"."+k.name, path)
				}
			}
		}
	}
	return all
}
