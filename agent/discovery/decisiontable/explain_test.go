package decisiontable

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"outrider.org/outrider/agent/discovery/explain"
)

// explain returns how the explanation of a request differs from its answer, "" if it does not.
func (w *workload) explain(c *testCase, r *request, got answer) string {
	proxy := explain.Proxy{Resources: w.snapshot, Router: c.kind == "router"}
	said := explain.Explain(proxy, r.question(c))
	said.Unknown = slices.DeleteFunc(said.Unknown, func(text string) bool {
		return strings.Contains(text, "envoy.filters.http.grpc_stats") // only counts
	})
	if strings.Contains(strings.Join(said.Unknown, " "), "external authorizer") {
		w.external++
		return "" // its answer is not known
	}
	if got.Status == http.StatusBadRequest && (got.Body == "Bad Request" || r.path[0] != '/') {
		w.external++
		return "" // the codec of HTTP/1.1 refuses the method or the form of the path
	}
	if got.Closed && r.identity != "" && !strings.HasPrefix(r.identity, "spiffe://cluster.local/") {
		w.external++
		return "" // istiod writes the names that the validation accepts to a deprecated field
	}
	w.predicted++
	predicted := fmt.Sprint(said.Status)
	switch {
	case len(said.Unknown) > 0:
		predicted = "unknown " + strings.Join(said.Unknown, "; ")
	case said.Outcome == explain.Forwarded && r.tcp:
		predicted = "0"
	case said.Outcome == explain.Forwarded:
		predicted = "200"
	case said.Outcome == explain.Closed || said.Outcome == explain.Refused:
		predicted = "closed"
	}
	if predicted == got.result() && (said.Body == "" || said.Body == got.Body || r.method == "HEAD") {
		return ""
	}
	var steps strings.Builder
	for _, s := range said.Steps {
		fmt.Fprintf(&steps, "\n  %s %s %q", s.What, s.Name, s.Facts)
	}
	return fmt.Sprintf("explained as %s %q, and the answer is %s %q%s", predicted, said.Body,
		got.result(), got.Body, steps.String())
}

// question returns the request in the form of the command line.
func (r *request) question(c *testCase) explain.Request {
	host := r.host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	q := explain.Request{Method: r.method, Host: host, Port: uint32(c.port), Path: r.path,
		Address: netip.MustParseAddr("127.0.0.1"), Source: netip.MustParseAddr(r.source),
		Identity: r.identity, ServerName: r.sni, Literal: r.host}
	if r.tcp {
		q.Port, q.Host = uint32(c.tcpPort), "any.test"
	}
	for _, h := range r.headers {
		q.Headers = append(q.Headers, explain.Header{Name: h[0], Value: h[1]})
	}
	return q
}
