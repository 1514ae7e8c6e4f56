package config

import (
	"net"
	"strings"
)

// identity checks that the keys which the provider requires are set.
func (x *crossCheck) identity() {
	i := x.Identity
	files := []struct{ key, value string }{
		{"identity.cert_file", i.CertFile}, {"identity.key_file", i.KeyFile},
	}
	if i.Provider != "istiod" {
		files = append(files, struct{ key, value string }{"identity.root_ca_file", i.RootCAFile})
	}
	for _, file := range files {
		switch {
		case i.Provider == "files" && file.value == "":
			x.refuse([]string{file.key, "identity.provider"}, "set "+file.key,
				"identity.provider %s needs %s", quote(i.Provider), file.key)
		case i.Provider == "none" && file.value != "":
			x.warn([]string{file.key}, `set identity.provider = "files"`,
				"has no effect without identity.provider")
		case i.Provider != "files" && file.value != "":
			x.warn([]string{file.key}, `remove the key, or set identity.provider = "files"`,
				"has no effect with identity.provider %s", quote(i.Provider))
		}
	}
	if i.Provider == "istiod" {
		x.istiod()
		return
	}
	// Connections to an upstream server with TLS use token_file and prov_cert_dir.
	upstream := len(x.Discovery.Addresses) > 0 && x.Discovery.UsesTLS()
	for _, k := range []struct {
		key, value string
		used       bool
	}{
		{"identity.ca_address", i.CAAddress, false},
		{"identity.token_file", i.TokenFile, upstream || x.STS.Port != 0},
		{"identity.prov_cert_dir", i.ProvCertDir, upstream},
	} {
		if k.value != "" && !k.used {
			x.warn([]string{k.key}, `set identity.provider = "istiod"`,
				"has no effect with identity.provider %s", quote(i.Provider))
		}
	}
}

// sts rejects keys of the token exchange if the exchange is disabled.
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

// istiod checks the keys of provider "istiod".
func (x *crossCheck) istiod() {
	const provider = "identity.provider"
	i := x.Identity
	address, key, plaintext := i.CAAddress, "identity.ca_address", IsPlaintextCA(i.CAAddress)
	encrypt := "use port 15012"
	if address == "" {
		encrypt += ", or another discovery.auth"
		address, key = strings.Join(x.Discovery.Addresses, ", "), "discovery.address"
		plaintext = address != "" && !x.Discovery.UsesTLS()
	}
	if address == "" {
		x.refuse([]string{"identity.ca_address", provider}, "set identity.ca_address",
			"identity.provider %s needs identity.ca_address or discovery.address", quote(i.Provider))
	}
	if i.TokenFile == "" && i.ProvCertDir == "" {
		x.refuse([]string{"identity.token_file", provider},
			"set identity.token_file or identity.prov_cert_dir",
			"identity.provider %s needs a token or a client certificate", quote(i.Provider))
	}
	switch {
	case plaintext && i.TokenFile == "":
		x.refuse([]string{key, "identity.prov_cert_dir"}, encrypt+", or set identity.token_file",
			"%s is plaintext: a client certificate cannot authenticate there", quote(address))
	case plaintext:
		x.warn([]string{key}, encrypt,
			"%s is plaintext: the token is sent unencrypted", quote(address))
	case address != "" && i.RootCAFile == "" && x.Discovery.RootCAFile == "":
		x.warn([]string{"identity.root_ca_file", provider}, "set identity.root_ca_file",
			"istiod's certificate is verified with the system's roots, which rarely include istiod's")
	}
}

// IsPlaintextCA reports whether the connection to a certificate authority has no TLS, as that to
// istiod's port 15010.
func IsPlaintextCA(address string) bool {
	_, port, err := net.SplitHostPort(address)
	return err == nil && port == "15010"
}
