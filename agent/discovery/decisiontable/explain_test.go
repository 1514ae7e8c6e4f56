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

// explain compares the explanation of a request with the answer of Envoy. It returns the
// difference, or "".
func (w *workload) explain(c *testCase, r *request, got answer) string {
	proxy := explain.Proxy{Resources: w.snapshot, IsGateway: c.kind == "router"}
	said := explain.Explain(proxy, r.question(c))
	said.UnknownFacts = slices.DeleteFunc(said.UnknownFacts, func(text string) bool {
		// the explanation does not cover this filter, which only counts requests
		return strings.Contains(text, "envoy.filters.http.grpc_stats")
	})
	if got.Status == http.StatusBadRequest && (got.Body == "Bad Request" || r.path[0] != '/') {
		w.codec++
		return "" // the HTTP/1.1 codec refuses the method or the path's syntax
	}
	if requested, why := w.explainAuthorizer(said.UnknownFacts, got); requested || why != "" {
		return why
	}
	w.predicted++
	predicted := fmt.Sprint(said.Status)
	switch {
	case len(said.UnknownFacts) > 0:
		predicted = "unknown " + strings.Join(said.UnknownFacts, "; ")
	case said.Outcome == explain.OutcomeForwarded && r.tcp:
		predicted = "0"
	case said.Outcome == explain.OutcomeForwarded:
		predicted = "200"
	case said.Outcome == explain.OutcomeConnectionClosed || said.Outcome == explain.OutcomeConnectionRefused:
		predicted = "closed"
	}
	if predicted == got.result() && (said.Body == "" || said.Body == got.Body || r.method == "HEAD") {
		return w.explainPlaces(said)
	}
	var steps strings.Builder
	for _, s := range said.Steps {
		fmt.Fprintf(&steps, "\n  %s %s %q", s.Kind, s.Name, s.Facts)
	}
	return fmt.Sprintf("explained as %s %q, and the answer is %s %q%s", predicted, said.Body,
		got.result(), got.Body, steps.String())
}

// explainAuthorizer checks whether the explanation correctly predicts which external authorizer is
// called, and returns the difference, or "". requested reports whether it predicts a call. The
// authorizer's decision cannot be predicted.
func (w *workload) explainAuthorizer(unknown []string, got answer) (requested bool, why string) {
	host, open := "", false
	for _, text := range unknown {
		if _, at, ok := strings.Cut(text, "what the external authorizer at "); ok {
			host, _, _ = strings.Cut(at, " ")
		}
		// whether it was called cannot be predicted
		open = open || strings.Contains(text, "action CUSTOM")
	}
	want := host
	if host == "dead.authz.test" || host == "missing.authz.test" || open && got.Called == "" {
		want = ""
	}
	if got.Called != want {
		return false, fmt.Sprintf("explained as a call of the authorizer %q (%q), and %q was called",
			host, unknown, got.Called)
	}
	if host != "" {
		w.authorizer++
	}
	return host != "", ""
}

// question converts the request to the form that package explain and the command line use.
func (r *request) question(c *testCase) explain.Request {
	host := r.host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	q := explain.Request{Method: r.method, Host: host, Port: uint32(c.port), Path: r.path,
		DestinationAddress: netip.MustParseAddr("127.0.0.1"), Source: netip.MustParseAddr(r.source),
		ClientSPIFFEID: r.identity, ServerName: r.sni, Authority: r.host}
	if r.tcp {
		q.Port, q.Host = uint32(c.tcpPort), "any.test"
	}
	for _, h := range r.headers {
		q.Headers = append(q.Headers, explain.Header{Name: h[0], Value: h[1]})
	}
	return q
}
