package render

import (
	"encoding/json"
	"errors"
	"net"
	"slices"

	"outrider.org/outrider/bootstrap"
)

// custom returns a user's complete bootstrap, and its text if that is JSON.
func custom(file string, content []byte) (document *value, text []byte, err error) {
	if document, err = parse(file, content); err == nil && json.Valid(content) {
		text = content
	}
	return document, text, err
}

// errNoAdmin means that a bootstrap has no admin interface, which Outrider needs to monitor and
// drain an epoch.
var errNoAdmin = errors.New("the bootstrap has no admin.address; Outrider needs Envoy's admin " +
	"interface to watch and drain it")

// adminAddress returns the network and address of the admin interface of a bootstrap. A wildcard
// address becomes loopback.
func adminAddress(document *value) (network, address string, err error) {
	at := &value{}
	if admin := document.get("admin"); admin != nil {
		if found := admin.get("address"); found != nil {
			at = found
		}
	}
	if pipe := at.get("pipe"); pipe != nil {
		if path := pipe.get("path"); path != nil && path.text != "" {
			return "unix", path.text, nil
		}
	}
	socket := at.get("socket_address", "socketAddress")
	if socket == nil {
		return "", "", errNoAdmin
	}
	host, port := socket.get("address"), socket.get("port_value", "portValue")
	if host == nil || port == nil || port.text == "0" {
		return "", "", &bootstrap.Error{File: "bootstrap", Line: socket.line,
			Path:    "admin.address.socket_address",
			Message: "needs an address and a port_value other than 0, so that Outrider can find it"}
	}
	name := host.text
	if ip := net.ParseIP(name); ip != nil && ip.IsUnspecified() {
		name = "127.0.0.1"
		if ip.To4() == nil {
			name = "::1"
		}
	}
	return "tcp", net.JoinHostPort(name, port.text), nil
}

// certificateFields are the fields with a DataSource of a certificate or key.
var certificateFields = []string{
	"certificate_chain", "certificateChain", "private_key", "privateKey", "trusted_ca", "trustedCa",
	"crl", "pkcs12",
	"password", "ocsp_staple", "ocspStaple",
}

// certificateFiles returns the files with certificates, keys and secrets that a bootstrap refers
// to, without duplicates. They must exist before Envoy starts.
func certificateFiles(document *value) []string {
	var files []string
	add := func(path *value) {
		if path != nil && path.kind == text && path.text != "" &&
			!slices.Contains(files, path.text) {
			files = append(files, path.text)
		}
	}
	var walk func(*value)
	walk = func(v *value) {
		for _, f := range v.fields {
			switch {
			case slices.Contains(certificateFields, f.name):
				add(f.value.get("filename"))
			case f.name == "sds_config" || f.name == "sdsConfig":
				add(f.value.get("path"))
				if source := f.value.get("path_config_source", "pathConfigSource"); source != nil {
					add(source.get("path"))
				}
			}
			walk(f.value)
		}
		for _, item := range v.items {
			walk(item)
		}
	}
	walk(document)
	return files
}
