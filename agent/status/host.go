package status

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
)

// ownHost refuses requests whose Host header names another machine. With DNS rebinding, a web page
// could otherwise make its visitor's browser read Envoy's configuration or stop the proxy. IP
// addresses, localhost and the machine's own name are accepted. Probes and scrapes do not use
// ownHost: their answers are not secret, and their Host header may be any name.
func ownHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, err := os.Hostname(); !isOwn(r.Host, name) {
			if err != nil || name == "" {
				name = "this machine's name"
			}
			say(w, http.StatusForbidden,
				fmt.Sprintf(
					"%s is refused for the host %q: ask by an address, as localhost or as %s, so that "+
						"no other site's page can ask through a browser of this machine",
					r.URL.Path,
					r.Host, name))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ownPage refuses requests that change something and come from a web page of another origin: a
// browser sends a cross-origin POST without a preflight request. Envoy's own admin page and clients
// other than browsers are not affected.
func ownPage(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := protection.Check(r); err != nil {
			say(w, http.StatusForbidden,
				fmt.Sprintf(
					"%s %s is refused for another site's page (%v): ask from a shell, or "+
						"from Envoy's own admin page",
					r.Method, r.URL.Path, err))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isOwn reports whether a Host header is an address, localhost, or the name of this machine, in
// full or only its first label. An empty Host (HTTP/1.0) is accepted: browsers always send one.
func isOwn(host, machine string) bool {
	if host == "" {
		return true
	}
	name := host
	if only, _, err := net.SplitHostPort(host); err == nil {
		name = only
	}
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return true
	}
	name, machine = strings.ToLower(strings.TrimSuffix(name, ".")), strings.ToLower(machine)
	short, _, _ := strings.Cut(machine, ".")
	return name == "localhost" || machine != "" && (name == machine || name == short)
}
