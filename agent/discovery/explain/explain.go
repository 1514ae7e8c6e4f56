// Package explain says what an Envoy would do with a request, from the resources it is given, and
// which objects decide it: listener, filter chain, virtual host, route and cluster are found as
// Envoy finds them. Functions here keep no state.
package explain

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"outrider.org/outrider/agent/resource"
)

// Request is what is asked about.
type Request struct {
	Method  string     // "" is GET
	Host    string     // as in a URL, without a port
	Port    uint32     // that is connected to
	Path    string     // with the query; "" is /
	Headers []Header   // without those that other fields tell
	TLS     bool       // the client speaks TLS, and Host is its server name
	Address netip.Addr // that is connected to; the zero value where it is not known
	// of :authority; "": a header host, or else what HTTP clients write: the host, with a port that
	// is not the scheme's
	Literal string
}

// Header is one header; its name counts in any case.
type Header struct{ Name, Value string }

// Proxy is what an Envoy has and where it stands.
type Proxy struct {
	Resources *resource.Snapshot
	Router    bool         // a gateway: nothing is outbound or inbound
	Captured  bool         // connections are intercepted
	Own       []netip.Addr // addresses of the machine: captured connections to them come in

	// Origins are those of a virtual host, the deciding one first; nil where they are not told
	// apart. May be nil.
	Origins func(routes, domain string) []resource.Origin
	// Refused is why Envoy refused a resource, "" if it did not. May be nil.
	Refused func(resource.Key) string
	// Live is what the running Envoy has counted, by cluster; nil where that is not known.
	Live map[string]Live
	// Idle is a Gateway with a server on the request's port that is not for this proxy, and why; ""
	// if there is none.
	Idle, IdleCure string
}

// Outcome is what becomes of a request.
type Outcome string

// The outcomes.
const (
	Forwarded Outcome = "forwarded" // sent to one of the clusters
	Redirect  Outcome = "redirect"
	Answered  Outcome = "answered" // by the proxy itself
	Refused   Outcome = "refused"  // nothing listens: the connection is refused
	Closed    Outcome = "closed"   // the connection is taken and ended
)

// Answer is what becomes of a request and why.
type Answer struct {
	Outcome  Outcome
	Status   int    // of an answer of the proxy's own; 0 where the backend says it
	Location string // of a redirect
	Body     string // of a direct response
	// that the request may be sent to, those with the greatest weight first as they are written
	Clusters []Target
	Mirrors  []Target // that get a copy
	Steps    []Step   // how it came to that, in order
	Reason   string   // why nothing takes the request; "" if something does
	Cure     string
	Unknown  []string // what cannot be told from the request alone
}

// Target is a cluster and its part of the requests.
type Target struct {
	Cluster string
	Percent float64
}

// Step is one decision.
type Step struct {
	// listener, filter chain, routes, virtual host, route, action, cluster, endpoints
	What    string
	Name    string            // of the resource or the part of it
	Facts   []string          // for people
	Origins []resource.Origin // the objects that decide, the deciding one first
}

// explanation is one on trial.
type explanation struct {
	proxy   Proxy
	request Request
	answer  Answer
}

// Explain follows a request.
func Explain(proxy Proxy, request Request) Answer {
	if request.Method == "" {
		request.Method = http.MethodGet
	}
	if request.Path == "" {
		request.Path = "/"
	}
	e := &explanation{proxy: proxy, request: request}
	e.connect()
	return e.answer
}

func (e *explanation) step(what, name string, origins []resource.Origin, facts ...string) {
	e.answer.Steps = append(e.answer.Steps, Step{What: what, Name: name, Facts: facts,
		Origins: origins})
}

// unknown notes what could make it otherwise.
func (e *explanation) unknown(format string, arguments ...any) {
	text := fmt.Sprintf(format, arguments...)
	for _, known := range e.answer.Unknown {
		if known == text {
			return
		}
	}
	e.answer.Unknown = append(e.answer.Unknown, text)
}

func (e *explanation) end(outcome Outcome, status int, reason, cure string) {
	e.answer.Outcome, e.answer.Status, e.answer.Reason, e.answer.Cure =
		outcome, status, reason, cure
}

// refusal is a fact about a resource that Envoy refused, if it did: this is about what was refused
// then.
func (e *explanation) refusal(key resource.Key) []string {
	if e.proxy.Refused == nil {
		return nil
	}
	if why := e.proxy.Refused(key); why != "" {
		e.unknown("what Envoy has in place of %s, which it refused: what was before, or nothing",
			key.Name)
		return []string{"Envoy refused this: " + why}
	}
	return nil
}

// authority is the request's :authority.
func (e *explanation) authority() string {
	if e.request.Literal != "" {
		return e.request.Literal
	}
	for _, h := range e.request.Headers {
		if strings.EqualFold(h.Name, "host") || h.Name == ":authority" {
			return h.Value
		}
	}
	usual := uint32(80)
	if e.request.TLS {
		usual = 443
	}
	if e.request.Port != usual {
		return net.JoinHostPort(e.request.Host, fmt.Sprint(e.request.Port))
	}
	if strings.Contains(e.request.Host, ":") {
		return "[" + e.request.Host + "]"
	}
	return e.request.Host
}

func percentOf(weight, total uint32) float64 {
	return 100 * float64(weight) / float64(max(total, 1))
}

func list(words []string) string { return strings.Join(words, ", ") }
