package status

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
)

// ownHost refuses requests that were meant for another host: a web page whose name is made to
// resolve to this machine (DNS rebinding) could have its visitor's browser read Envoy's
// configuration, or end the proxy. A browser tells that name as Host; what people and scripts write
// for this machine is an address, localhost, or its own name. Probes and scrapes are not asked:
// what they read is no secret, and they come under any name.
func ownHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, err := os.Hostname(); !isOwn(r.Host, name) {
			if err != nil || name == "" {
				name = "this machine's name"
			}
			say(w, http.StatusForbidden, fmt.Sprintf("%s is refused for the host %q: ask by an address, as localhost or as %s, so that "+
				"no other site's page can ask through a browser of this machine", r.URL.Path, r.Host, name))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ownPage refuses requests that may change something and come from a page of another origin: a
// browser sends a POST without asking this host first. Envoy's own admin page, and what is no
// browser, go through.
func ownPage(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := protection.Check(r); err != nil {
			say(w, http.StatusForbidden, fmt.Sprintf("%s %s is refused for another site's page (%v): ask from a shell, or from Envoy's own admin page",
				r.Method, r.URL.Path, err))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isOwn tells whether a Host header names the machine of the given name: an address, localhost, or
// the name, in full or its first part. HTTP/1.0 needs no Host; no browser leaves it out.
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
