package dns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/dns/resolved"
)

// conditionRoute is active while systemd-resolved does not route the mesh's domains.
const conditionRoute = "dns-route-unavailable"

const routeRetryAfter = 10 * time.Second

// route makes systemd-resolved send queries for the mesh's domains to address, until ctx ends.
func (s *Server) route(ctx context.Context, address netip.AddrPort) {
	if address.Addr().IsUnspecified() {
		address = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), address.Port())
	}
	for ctx.Err() == nil {
		err := s.connectHelper(ctx, address)
		if ctx.Err() != nil {
			return
		}
		s.options.Conditions.Raise(conditionRoute, condition.Error,
			fmt.Sprintf("systemd-resolved does "+
				"not route the mesh's domains to the DNS proxy: %v; it is tried again every %v", err,
				routeRetryAfter))
		select {
		case <-time.After(routeRetryAfter):
		case <-ctx.Done():
		}
	}
}

// connectHelper sends the domains to outrider-resolved, and again after each change, until the
// connection ends. The route is removed when the last descriptor of the connection is closed;
// systemd holds one while the agent restarts.
func (s *Server) connectHelper(ctx context.Context, address netip.AddrPort) error {
	client, err := resolved.Dial(ctx, s.options.ResolvedHelperSocket)
	if err != nil {
		return err
	}
	defer client.Close()
	var sent *table
	stored := false
	for {
		t := s.table.Load()
		if t != nil && (sent == nil || !slices.Equal(t.domains, sent.domains)) {
			route := resolved.DNSRoute{Server: address, Domains: t.domains}
			if err := client.Apply(ctx, route); err != nil {
				return err
			}
			sent = t
			if !stored {
				stored = true
				s.storeRoute(client)
			}
			s.options.Conditions.Clear(conditionRoute)
			s.options.Logger.Info("systemd-resolved routes the mesh's domains to the DNS proxy")
		}
		select {
		case <-s.changed:
		case <-client.Done():
			return resolved.ErrHelperEnded
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// storeRoute stores the connection to outrider-resolved with systemd, so that the mesh's domains
// remain routed while the agent restarts. It replaces the connection that the previous agent
// stored.
func (s *Server) storeRoute(client *resolved.Client) {
	for _, file := range s.storedRoute {
		_ = file.Close()
	}
	s.storedRoute = nil
	err := s.options.Store.Remove(storedRoute) // a stored connection that has ended
	if err = errors.Join(err, s.options.Store.Add(storedRoute, client)); err != nil {
		s.options.Logger.Warn("cannot store the DNS route: systemd-resolved drops it while the agent restarts",
			"error", err)
	}
}

// maxDomainName is the length of the longest domain name, without final dot.
const maxDomainName = 253

// routed returns the domains of names for systemd-resolved. All hosts of Kubernetes share one
// domain. Domains below another one are omitted, and so are domains that resolved refuses, because
// resolved refuses a whole list with one such domain. If more than resolved.MaxDomains remain,
// routed returns ".", which routes all names.
func routed(names []Name) []string {
	found := map[string]bool{}
	for _, n := range names {
		domain := strings.TrimPrefix(strings.ToLower(n.Host), "*.")
		if n.ShortName != "" {
			domain = strings.TrimPrefix(domain, strings.ToLower(n.ShortName+"."+n.Namespace+"."))
		}
		_, ok := dns.IsDomainName(domain)
		if ok && len(domain) <= maxDomainName && !strings.ContainsFunc(domain, unprintable) {
			found[domain] = true
		}
	}
	covered := func(domain string) bool {
		for {
			var ok bool
			if _, domain, ok = strings.Cut(domain, "."); !ok || found[domain] {
				return ok
			}
		}
	}
	all := slices.DeleteFunc(slices.Sorted(maps.Keys(found)), covered)
	if len(all) > resolved.MaxDomains {
		return []string{"."}
	}
	return all
}

// unprintable reports whether a character is a space or control character, or begins an escape.
func unprintable(r rune) bool { return r <= ' ' || r == 0x7f || r == '\\' }
