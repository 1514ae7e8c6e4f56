package admission

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Service is an HTTP service on loopback for selected local users. It refuses requests that a web
// page makes in a user's browser.
type Service struct {
	Address      string // host:port
	Handler      http.Handler
	Users        []uint32 // the users that may connect
	RefusalBody  string   // JSON response to connections of other users and beyond the limits
	WriteTimeout time.Duration
	OnBind       func(error) // receives the result of each attempt to bind the address
	Logger       *slog.Logger
}

// serviceLimits are the limits of a Service's connections.
var serviceLimits = Limits{Total: 64, PerKey: 32}

// Serve serves until ctx ends. While the address cannot be bound, it retries every second.
func (s Service) Serve(ctx context.Context) error {
	listener, err := Bind(ctx, s.Address, s.OnBind)
	if err != nil {
		return nil //nolint:nilerr // ctx ended before the address could be bound
	}
	s.OnBind(nil)
	allowed, refused := NewPool(serviceLimits), NewPool(Limits{})
	refusal := fmt.Appendf(nil, "HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\n"+
		"Connection: close\r\nContent-Length: %d\r\n\r\n%s", len(s.RefusalBody), s.RefusalBody)
	bounded := NewListener(listener, Options{RefusalResponse: refusal,
		Admit: func(c net.Conn) (*Pool, ClientKey) {
			key := KeyOfTCP(c)
			if key.Local() && slices.Contains(s.Users, key.UID) {
				return allowed, key
			}
			return refused, key
		}})
	server := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if FromWebPage(r) {
			http.Error(w, "use an IP address or localhost, and no Origin: "+
				"web pages are refused", http.StatusForbidden)
			return
		}
		s.Handler.ServeHTTP(w, r)
	}), s.Logger)
	server.WriteTimeout = s.WriteTimeout
	if err := Serve(ctx, server, bounded); err != nil {
		return fmt.Errorf("serve on %s: %w", s.Address, err)
	}
	return nil
}

// FromWebPage reports whether a web page may have made a browser send the request: the request has
// the header Origin, or its Host is a name other than localhost (DNS rebinding).
func FromWebPage(r *http.Request) bool {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return r.Header.Get("Origin") != "" || err != nil && !strings.EqualFold(host, "localhost")
}
