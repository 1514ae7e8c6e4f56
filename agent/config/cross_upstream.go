package config

import (
	"regexp"
	"slices"
	"strings"
)

// pilotIdentity matches a SPIFFE ID, or the last segments of the path of one.
var pilotIdentity = regexp.MustCompile(`^(spiffe://[^/]+)?(/[^/]+)+$`)

// upstream checks the keys of the connection to the upstream xDS server (istiod).
func (x *crossCheck) upstream() {
	d, h := x.Discovery, x.Health
	const address = "discovery.address"
	upstream := len(d.Addresses) > 0
	keys := []struct {
		key string
		set bool
		tls bool // the key has an effect with TLS only
	}{
		{"discovery.auth", d.Auth != "auto", false},
		{"discovery.root_ca_file", d.RootCAFile != "", true},
		{"discovery.server_name", d.ServerName != "", true},
		{"discovery.pilot_identity", d.PilotIdentity != "", true},
		{"node.workload_group", x.Node.WorkloadGroup != "", false},
		{"health.http", h.HTTP != "", false}, {"health.tcp", h.TCP != "", false},
		{"health.grpc", h.GRPC != "", false}, {"health.exec", len(h.Exec) > 0, false},
		{"health.unit", h.Unit != "", false},
	}
	for _, k := range keys {
		switch {
		case !k.set || x.Envoy.TemplateFile != "": // a bootstrap template may use the key
		case !upstream && !x.signs(k.key):
			x.warn([]string{k.key}, "set "+address, "has no effect without %s", address)
		case !d.ProxyXDS && strings.HasPrefix(k.key, "health."):
			x.warn([]string{k.key}, "remove it, or discovery.proxy",
				"has no effect: Envoy connects to the upstream server itself")
		case upstream && k.tls && !d.UsesTLS():
			x.warn([]string{k.key, address}, `set discovery.auth = "tls"`,
				"has no effect: the upstream server is reached without TLS")
		}
	}
	dynamic := []string{"discovery.dynamic_bootstrap"}
	switch {
	case d.DynamicBootstrap && !upstream:
		x.refuse(dynamic, "set "+address+", or remove the key", "there is no upstream server")
	case d.DynamicBootstrap && (x.Envoy.TemplateFile != "" || x.Envoy.CustomConfigFile != ""):
		x.refuse(dynamic, "keep one of them",
			"excludes envoy.template_file and envoy.custom_config_file")
	}
	if !upstream {
		return
	}
	for _, key := range []string{"discovery.files", "discovery.mesh_config_file"} {
		if _, set := x.positions[key]; set {
			x.warn([]string{key}, "remove the key, or "+address,
				"has no effect: %s replaces the embedded server", address)
		}
	}
	if id := d.PilotIdentity; id != "" && d.UsesTLS() && !pilotIdentity.MatchString(id) {
		x.refuse([]string{"discovery.pilot_identity"},
			`write, for example, "/ns/istio-system/sa/istiod"`,
			"%s would match other identities, too: it must begin with / or be a whole spiffe:// ID",
			quote(id))
	}
	if plaintext := slices.IndexFunc(d.Addresses, IsPlaintextCA); d.Auth == "auto" &&
		plaintext >= 0 &&
		slices.ContainsFunc(d.Addresses, func(a string) bool { return !IsPlaintextCA(a) }) {
		x.refuse([]string{address}, "set discovery.auth, or use addresses of one kind",
			"%s is plaintext and others of the list are not", quote(d.Addresses[plaintext]))
	}
	if !d.ProxyXDS && len(d.Addresses) > 1 {
		x.refuse([]string{"discovery.proxy"}, "remove the key, or all but one of "+address,
			"Envoy itself does not change between the %d addresses of %s", len(d.Addresses), address)
	}
	i := x.Identity
	token := i.TokenFile != "" && d.UsesTLS() && d.Auth != "mtls"
	switch {
	case !d.ProxyXDS && d.PilotIdentity != "":
		x.refuse([]string{"discovery.proxy"}, "remove discovery.pilot_identity or discovery.proxy",
			"Envoy cannot check the suffix of an identity (discovery.pilot_identity)")
	case !d.ProxyXDS && token:
		x.refuse([]string{"discovery.proxy"}, `set discovery.auth = "mtls", or remove the key`,
			"Envoy cannot send the token of identity.token_file to the upstream server")
	}
	switch {
	case d.Auth == "mtls" && i.Provider == "none" && i.ProvCertDir == "":
		x.refuse([]string{"discovery.auth"}, "set identity.provider or identity.prov_cert_dir",
			"auth %s needs a client certificate", quote(d.Auth))
	case d.UsesTLS() && d.RootCAFile == "" && i.RootCAFile == "":
		x.warn([]string{"discovery.root_ca_file", address}, "set discovery.root_ca_file",
			"the upstream server is verified with the system's roots, which rarely include istiod's")
	}
}

// signs reports whether a key is also used for the connection to the certificate authority.
func (x *crossCheck) signs(key string) bool {
	return x.Identity.Provider == "istiod" &&
		(key == "discovery.root_ca_file" || key == "discovery.server_name")
}
