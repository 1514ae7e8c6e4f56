package config

// identity checks that the keys required by the provider are set.
func (x *crossCheck) identity() {
	i := x.Identity
	files := []struct{ key, path string }{
		{"identity.cert_file", i.CertFile}, {"identity.key_file", i.KeyFile},
		{"identity.root_ca_file", i.RootCAFile},
	}
	for _, file := range files {
		switch {
		case i.Provider == "files" && file.path == "":
			x.refuse([]string{file.key, "identity.provider"}, "set "+file.key,
				"identity.provider %s needs %s", quote(i.Provider), file.key)
		case i.Provider == "none" && file.path != "":
			x.warn([]string{file.key}, `set identity.provider = "files"`,
				"has no effect without identity.provider")
		}
	}
}

// sts checks that the token exchange that the keys configure is enabled.
func (x *crossCheck) sts() {
	if x.STS.Port != 0 {
		return
	}
	if x.STS.Audience != "" {
		x.warn([]string{"sts.audience"}, "set sts.port", "has no effect without sts.port")
	}
	if x.STS.ServiceAccount != "" {
		x.warn([]string{"sts.service_account"}, "set sts.port", "has no effect without sts.port")
	}
}
