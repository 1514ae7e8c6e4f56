package config

import (
	"net/netip"
	"slices"
)

// discoverydCheck checks combinations of keys whose values are valid individually.
type discoverydCheck struct {
	*Discoveryd
	keyCheck
}

func (x *discoverydCheck) all() {
	x.listeners()
	for i, s := range x.Sources {
		x.source(itemName("source", i), s, false)
	}
	for i, s := range x.Registries {
		x.source(itemName("registry", i), s, true)
	}
	for i, issuer := range x.Auth.JWTIssuers {
		name := itemName("auth.jwt_issuers", i)
		if issuer.Issuer == "" || issuer.JWKSFile == "" {
			x.refuse([]string{name}, "write both", "needs issuer and jwks_file")
		}
	}
	if x.Registration.Enabled {
		x.registration()
	}
	if x.CA.Enabled && x.Listen.TLS == "" {
		x.refuse([]string{"ca.enabled", "listen.tls"}, "set listen.tls",
			"the authority serves on listen.tls only, which is off")
	}
	if x.CA.Enabled && (x.CA.CertFile == "" || x.CA.KeyFile == "") {
		x.refuse([]string{"ca.enabled", "ca.cert_file", "ca.key_file"},
			"set ca.cert_file and ca.key_file; \"outrider-discoveryd ca init DIR\" makes some "+
				"for trying out", "needs a certificate that signs, and its key")
	}
	if x.Push.DebounceAfter > x.Push.DebounceMax {
		x.refuse([]string{"push.debounce_after", "push.debounce_max"}, "write a shorter one",
			"is longer than push.debounce_max")
	}
}

// registration checks that a source or registry reads registered workloads from where they are
// stored, and that workloads can connect with an identity.
func (x *discoverydCheck) registration() {
	where := []string{"registration.store", "registration.enabled"}
	ofType := func(s *Source) bool { return s.Type == x.Registration.Store }
	switch {
	case x.Registration.Store == "kubernetes" && !slices.ContainsFunc(x.Sources, ofType):
		// a registry of type kubernetes reads no WorkloadEntries
		x.refuse(where, "add a [[source]] of type kubernetes",
			"needs a source of type kubernetes: registered workloads are written to its API server, "+
				"and read from there")
	case x.Registration.Store == "consul" && !slices.ContainsFunc(x.Registries, ofType):
		x.refuse(where, "add a [[registry]] of type consul",
			"needs a registry of type consul: registered workloads are written to its catalogue, "+
				"and read from there")
	}
	if x.Listen.TLS == "" {
		x.refuse([]string{"registration.enabled"}, "set listen.tls", "workloads need an identity "+
			"to register themselves, and listen.tls is off")
	}
}

func (x *discoverydCheck) listeners() {
	if x.Listen.Plaintext == "" && x.Listen.TLS == "" {
		x.refuse([]string{"listen.plaintext", "listen.tls"}, "set one of the two",
			"nothing is served: listen.plaintext and listen.tls are both off")
	}
	if x.Listen.TLS != "" && (x.TLS.CertFile == "" || x.TLS.KeyFile == "") {
		x.refuse([]string{"listen.tls", "tls.cert_file", "tls.key_file"},
			"set tls.cert_file and tls.key_file", "needs a certificate")
	}
	if x.Listen.TLS != "" && x.Auth.Require == "mtls" && x.TLS.ClientCAFile == "" &&
		!x.CA.Enabled {
		x.refuse([]string{"auth.require", "tls.client_ca_file"}, "set tls.client_ca_file",
			"no certificate of a client can be verified")
	}
	if x.Auth.JoinNotBefore != "" && x.Auth.JoinKeyFile == "" {
		x.refuse([]string{"auth.join_not_before"}, "set auth.join_key_file, or remove it",
			"has no effect: join tokens are off")
	}
}

// source checks a [[source]] or [[registry]].
func (x *discoverydCheck) source(name string, s *Source, registry bool) {
	if x.failed[name] || x.failed[name+".type"] {
		return
	}
	if s.Type == "" {
		x.refuse([]string{name + ".type", name}, "write kubernetes, consul, mcp or memory",
			"a registry needs a type")
		return
	}
	for _, k := range sourceTable(name, s, registry).keys {
		key := name + "." + k.name
		if _, said := x.positions[key]; said && !ofType(k.name, s.Type) {
			x.refuse([]string{key}, "remove it", "has no effect on type %s", quote(s.Type))
		}
	}
	switch {
	case s.Type == "files" && len(s.Paths) == 0:
		x.refuse([]string{name + ".paths", name}, "name a file or directory", "is empty")
	case s.Type == "mcp" && x.positions[name+".address"] == Position{}:
		x.refuse([]string{name + ".address", name}, "set it to host:port",
			"type mcp needs an address")
	case s.Type == "mcp" && (s.CertFile == "") != (s.KeyFile == ""):
		x.refuse([]string{name + ".cert_file", name + ".key_file"}, "set both or none",
			"cert_file and key_file belong together")
	case s.Type == "memory" && s.Listen == "":
		x.refuse([]string{name + ".listen", name}, `set it, for example to "127.0.0.1:15016"`,
			"type memory needs the address of its write API")
	case s.Type == "memory" && !isLoopback(s.Listen):
		x.refuse([]string{name + ".listen"}, `write a loopback address, such as "127.0.0.1:15016"`,
			"the write API has no TLS: %s is not only for this host", quote(s.Listen))
	case s.Type == "memory" && s.TokenFile == "":
		x.refuse([]string{name + ".token_file", name}, "name a file with a random token",
			"type memory needs the token of its write API")
	case s.Type == "files" && !registry && x.secondFiles(s):
		x.refuse([]string{name + ".type", name}, "put all paths into the first one",
			"there is another source of type files")
	}
}

// isLoopback reports whether an address to listen on is reachable only by processes of this host.
func isLoopback(address string) bool {
	host, _, _ := splitAddress(address)
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// secondFiles reports whether s is not the first source of type files.
func (x *discoverydCheck) secondFiles(s *Source) bool {
	first := slices.IndexFunc(x.Sources, func(o *Source) bool { return o.Type == "files" })
	return x.Sources[first] != s
}
