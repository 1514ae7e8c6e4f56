package explain

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	filelogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"outrider.org/outrider/agent/discovery/rbac"
	"outrider.org/outrider/agent/resource"
)

// manager evaluates an HTTP connection manager: its filters and routes.
func (e *explanation) manager(m *hcmv3.HttpConnectionManager, d *listener) {
	if e.hcm = m; strings.Contains(e.request.Path, "#") {
		e.end(OutcomeLocalReply, http.StatusBadRequest, "the path has a fragment (#)", "send the path without")
		return
	}
	e.request.Path = normalized(m, e.request.Path)
	for _, f := range m.HttpFilters {
		var facts []string
		if f.Disabled {
			facts = []string{"is disabled, except where a route enables it"}
		}
		e.patched("filter", f.Name, d, facts...)
		if f.Name == rbac.HTTPResolverFilter {
			// function cluster explains this filter, which resolves the names of dynamic DNS
			// clusters
			continue
		}
		if !f.Disabled {
			if ended, known := e.guard(f, d); ended {
				return
			} else if known {
				continue
			}
		}
		if f.Name != faultFilter && f.Name != corsFilter && f.Name != routerFilter && !f.Disabled {
			e.unknown("what HTTP filter %s of listener %s does with the request", f.Name, d.Name)
			e.foreign = true
		}
	}
	routes, origins := m.GetRouteConfig(), d.resource.Origins
	if name := m.GetRds().GetRouteConfigName(); name != "" {
		key := resource.Key{Type: resource.RouteType, Name: name}
		r := e.proxy.Resources.Get(key)
		if r == nil {
			e.end(OutcomeLocalReply, 404,
				fmt.Sprintf("the listener asks for route configuration %s, which there is none of",
					name), "look at outrider mesh check")
			return
		}
		var err error
		if routes, err = decode(r, &routev3.RouteConfiguration{}); err != nil {
			e.end(OutcomeConnectionClosed, 0, err.Error(), "")
			return
		}
		origins = r.Origins
		e.step("routes", name, nil,
			append([]string{count(len(routes.VirtualHosts), "virtual host")}, e.refusal(key)...)...)
	}
	if routes == nil {
		e.unknown("the routes of listener %s, which come from elsewhere", d.Name)
		e.end(OutcomeLocalReply, 0, "where the listener's routes come from is not known", "")
		return
	}
	e.withPorts = !routes.IgnorePortInHostMatching
	host, domain := findHost(routes, e.authority())
	if host == nil {
		e.end(OutcomeLocalReply, 404, fmt.Sprintf("no virtual host of the routes %s is for %s", routes.Name,
			e.authority()), e.hostFix())
		return
	}
	if e.proxy.VirtualHostOrigins != nil {
		if of := e.proxy.VirtualHostOrigins(routes.Name, host.Domains[0]); of != nil {
			origins = of
		} else if e.isFallback(host) {
			origins = nil
		}
	}
	e.step("virtual host", host.Name, origins, "has the domain "+domain)
	e.routes(host, origins)
}

// managerFacts describes the settings of a connection manager that affect requests. If logs is set,
// it also describes the log files.
func managerFacts(m *hcmv3.HttpConnectionManager, logs bool) []string {
	var facts []string
	if n := m.XffNumTrustedHops; n > 0 {
		facts = append(facts, fmt.Sprintf(
			"takes the client's address from x-forwarded-for (trusted proxies: %d)", n))
	}
	if n := len(m.GetLocalReplyConfig().GetMappers()); n > 0 {
		facts = append(facts, "changes answers of its own, by "+count(n, "rule"))
	}
	for _, log := range m.AccessLog {
		if file, ok := unpack(log.GetTypedConfig(), &filelogv3.FileAccessLog{}); ok && logs {
			facts = append(facts, "logs requests to "+file.Path)
		}
	}
	return facts
}

// isFallback reports whether a virtual host is the one for hosts that no other virtual host has.
func (e *explanation) isFallback(host *routev3.VirtualHost) bool {
	return host.Name == "block_all" || strings.HasPrefix(host.Name, "allow_any")
}

func (e *explanation) hostFix() string {
	if e.proxy.IsGateway {
		return fmt.Sprintf(
			"bind a VirtualService with the host %s to a Gateway of this proxy, "+
				"whose server has the host too",
			e.request.Host)
	}
	return fmt.Sprintf(
		"add a ServiceEntry with the host %s and the port %d; a Sidecar's egress has to let it in",
		e.request.Host, e.servicePort())
}

// servicePort returns the port of the service that the request is for: that of the connection or,
// at an HTTP proxy, that in the request's host.
func (e *explanation) servicePort() uint32 {
	if !e.withPorts {
		return e.request.Port
	}
	if _, text, err := net.SplitHostPort(e.authority()); err == nil {
		port, _ := strconv.ParseUint(text, 10, 16)
		return uint32(port)
	}
	return 80
}

// normalized returns a path in the form in which the connection manager matches it with routes.
func normalized(m *hcmv3.HttpConnectionManager, target string) string {
	before, query, hasQuery := strings.Cut(target, "?")
	p := before
	if m.PathWithEscapedSlashesAction == hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD {
		p = strings.NewReplacer("%2F", "/", "%2f", "/", "%5C", `\`, "%5c", `\`).Replace(p)
	}
	if m.GetNormalizePath().GetValue() {
		p = escape.ReplaceAllStringFunc(p, func(escaped string) string {
			if decoded, _ := url.PathUnescape(escaped); unreserved.MatchString(decoded) {
				return decoded
			}
			return escaped
		})
		p = dotless(strings.ReplaceAll(p, `\`, "/"))
	}
	if m.MergeSlashes {
		for strings.Contains(p, "//") {
			p = strings.ReplaceAll(p, "//", "/")
		}
	}
	if hasQuery {
		p += "?" + query
	}
	return p
}

// escape matches an escaped byte; unreserved matches the characters that need no escape (RFC 3986,
// 2.3).
var (
	escape     = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)
	unreserved = regexp.MustCompile(`^[A-Za-z0-9._~-]$`)
)

// dotless removes the segments . and .. from a path, and retains empty segments (RFC 3986, 5.2.4).
func dotless(p string) string {
	if !strings.Contains(p, "/.") {
		return p
	}
	var out []string
	segments := strings.Split(p, "/")
	for i, segment := range segments {
		last := i == len(segments)-1
		switch segment {
		case ".", "..":
			if segment == ".." && len(out) > 1 {
				out = out[:len(out)-1]
			}
			if last {
				out = append(out, "")
			}
		default:
			out = append(out, segment)
		}
	}
	return strings.Join(out, "/")
}

// findHost returns the virtual host for an authority: by exact domain, else by the longest domain
// that begins with *, else by the longest that ends with *, else by the domain *.
func findHost(routes *routev3.RouteConfiguration, authority string) (*routev3.VirtualHost, string) {
	authority = strings.ToLower(authority)
	if routes.IgnorePortInHostMatching {
		authority = withoutPort(authority)
	}
	var best *routev3.VirtualHost
	found, highest := "", 0
	for _, host := range routes.VirtualHosts {
		for _, domain := range host.Domains {
			if near := closeness(strings.ToLower(domain), authority); near > highest {
				best, found, highest = host, domain, near
			}
		}
	}
	return best, found
}

// closeness ranks a domain by how specifically it matches an authority; 0: it does not match.
func closeness(domain, authority string) int {
	// ranks of the kinds of matches; each exceeds the next by more than the length of any domain
	const exact, suffix, prefix = 1 << 30, 1 << 20, 1 << 10
	switch {
	case domain == authority:
		return exact
	case domain == "*":
		return 1
	case strings.HasPrefix(domain, "*") && strings.HasSuffix(authority, domain[1:]) &&
		len(authority) >= len(domain):
		return suffix + len(domain)
	case strings.HasSuffix(domain, "*") && strings.HasPrefix(authority, domain[:len(domain)-1]) &&
		len(authority) >= len(domain):
		return prefix + len(domain)
	}
	return 0
}

// withoutPort removes the port from an authority. The brackets of an IPv6 address remain.
func withoutPort(authority string) string {
	if at := strings.LastIndexByte(authority, ':'); at > strings.LastIndexByte(authority, ']') {
		return authority[:at]
	}
	return authority
}

func count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
