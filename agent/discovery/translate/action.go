package translate

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	previoushostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	previousprioritiesv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
)

// Istio's defaults for routes without retries.
const (
	defaultAttempts = 2
	// "retriable-status-codes" retries the codes in the header x-envoy-retriable-status-codes
	defaultRetryOn    = "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes"
	otherHostAttempts = 5
	// number of attempts after which priorities that were tried are excluded
	retriesPerPriority  = 2
	defaultRedirectCode = http.StatusMovedPermanently
)

// forward makes a route send requests to one destination, or to several by weight. Header
// operations of a single destination are appended to those of the route. It does not set istiod's
// max_grpc_timeout: Envoy reports it as deprecated, and its successor answers a timeout with 408.
// gRPC clients enforce shorter deadlines themselves.
func (r *RouteTranslator) forward(out *routev3.Route, in model.HTTPRoute) {
	field := fmt.Sprintf("http[%d]", in.Index)
	action := &routev3.RouteAction{Timeout: durationpb.New(0)}
	if in.Timeout != nil {
		action.Timeout = in.Timeout
	}
	out.Action = &routev3.Route_Route{Route: action}
	rewrite(action, in.Rewrite, hostOf(in.GetHeaders().GetRequest()))
	r.mirrors(action, in, field)
	if len(in.Route) == 1 {
		to := in.Route[0]
		name, hash := r.httpDestination(out, in.Object, to.Destination,
			field+".route[0].destination")
		action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: name}
		action.HashPolicy = hash
		changeHeaders(out, to.Headers)
		if host := hostOf(to.GetHeaders().GetRequest()); host != "" &&
			action.HostRewriteSpecifier == nil {
			action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{
				HostRewriteLiteral: host}
		}
		action.RetryPolicy = r.retryPolicy(in.Retries, len(hash) > 0)
		return
	}
	weighted := &routev3.WeightedCluster{}
	for i, to := range in.Route {
		if to.Weight == 0 {
			continue
		}
		name, hash := r.httpDestination(out, in.Object, to.Destination,
			fmt.Sprintf("%s.route[%d].destination", field, i))
		for _, p := range hash {
			if !slices.ContainsFunc(action.HashPolicy,
				func(known *routev3.RouteAction_HashPolicy) bool { return proto.Equal(known, p) }) {
				action.HashPolicy = append(action.HashPolicy, p)
			}
		}
		cluster := &routev3.WeightedCluster_ClusterWeight{Name: name,
			Weight: wrapperspb.UInt32(uint32(to.Weight))}
		request, response := to.GetHeaders().GetRequest(), to.GetHeaders().GetResponse()
		cluster.RequestHeadersToAdd, cluster.RequestHeadersToRemove = headerOptions(request),
			request.GetRemove()
		cluster.ResponseHeadersToAdd, cluster.ResponseHeadersToRemove = headerOptions(response),
			response.GetRemove()
		if host := hostOf(request); host != "" {
			cluster.HostRewriteSpecifier = &routev3.WeightedCluster_ClusterWeight_HostRewriteLiteral{
				HostRewriteLiteral: host}
		}
		weighted.Clusters = append(weighted.Clusters, cluster)
	}
	action.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: weighted}
	action.RetryPolicy = r.retryPolicy(in.Retries, false)
}

// changeHeaders adds header operations to those of a route.
func changeHeaders(out *routev3.Route, in *networking.Headers) {
	request, response := in.GetRequest(), in.GetResponse()
	out.RequestHeadersToAdd = append(out.RequestHeadersToAdd, headerOptions(request)...)
	out.RequestHeadersToRemove = append(out.RequestHeadersToRemove, request.GetRemove()...)
	out.ResponseHeadersToAdd = append(out.ResponseHeadersToAdd, headerOptions(response)...)
	out.ResponseHeadersToRemove = append(out.ResponseHeadersToRemove, response.GetRemove()...)
}

// httpDestination is like destination, for routes of requests. If the destination uses dynamic DNS,
// it restricts the route to hosts with the listener's port (see resolvesHost).
func (r *RouteTranslator) httpDestination(out *routev3.Route, from *object.Object,
	to *networking.Destination, field string) (string, []*routev3.RouteAction_HashPolicy) {
	r.dynamicPort = 0
	name, hash := r.destination(from, to, field)
	switch {
	case r.dynamicPort == 0:
	case r.inMesh():
		resolvesHost(out, r.Port)
	default:
		r.problems = append(r.problems, from.Warning(field+".host", fmt.Sprintf(
			"hosts of %s are resolved by sidecars only (DYNAMIC_DNS): requests get 503", to.Host),
			"route TLS by server name (tls) at a gateway, or name single hosts with resolution DNS"))
	}
	return name, hash
}

// destination returns the cluster name of a destination, and reports a problem if the destination
// does not exist.
func (r *RouteTranslator) destination(from *object.Object, to *networking.Destination,
	field string) (string,
	[]*routev3.RouteAction_HashPolicy) {
	host := model.FullName(to.GetHost(), from.Namespace, r.Mesh.Domain())
	service := r.service(host)
	port := r.portOf(service, to)
	switch {
	case service == nil:
		r.problems = append(r.problems, from.Warning(field+".host",
			fmt.Sprintf("no service has the host %s", host),
			"requests get 503; add a ServiceEntry or correct the host"))
	case service.Port(port) == nil:
		r.problems = append(r.problems, from.Warning(field+".port",
			fmt.Sprintf("service %s has no port %d", host, port),
			"requests get 503; name one of its ports"))
	case to.Subset != "" && r.Mesh.DestinationRule(service, r.Node).Subset(to.Subset) == nil:
		r.problems = append(r.problems, from.Warning(field+".subset",
			fmt.Sprintf("no DestinationRule for %s has a subset %s", host, to.Subset),
			"requests get 503; add the subset or correct its name"))
	}
	if service != nil && to.GetSubset() == "" && service.Port(port).IsDynamicDNS() {
		r.dynamicPort = port
	}
	return ClusterName(port, to.GetSubset(), host), r.hashPolicy(service, port, to.GetSubset())
}

// portOf returns the service port of a destination: the one that the destination names, else the
// only port of the service, else the listener's. service is nil if the destination's service is
// unknown.
func (r *RouteTranslator) portOf(service *model.Service, to *networking.Destination) uint32 {
	switch {
	case to.GetPort().GetNumber() != 0:
		return to.Port.Number
	case service != nil && len(service.Ports) == 1:
		return service.Ports[0].Number
	}
	return r.Port
}

// retryPolicy returns the retry policy of a route, else of the mesh, else Istio's default. Requests
// with a hash policy are retried on the endpoint of their hash, unless the route has other
// settings.
func (r *RouteTranslator) retryPolicy(in *networking.HTTPRetry, hashed bool) *routev3.RetryPolicy {
	if in == nil {
		in = r.Mesh.MeshConfig().Retry
	}
	if in != nil && in.Attempts <= 0 {
		return nil
	}
	out := &routev3.RetryPolicy{NumRetries: wrapperspb.UInt32(defaultAttempts),
		RetryOn: defaultRetryOn, HostSelectionRetryMaxAttempts: otherHostAttempts,
		PerTryTimeout: in.GetPerTryTimeout()}
	if in != nil {
		out.NumRetries = wrapperspb.UInt32(uint32(in.Attempts))
	}
	if in.GetRetryOn() != "" {
		out.RetryOn, out.RetriableStatusCodes = retryOn(in.RetryOn)
	}
	elsewhere := !hashed
	if in.GetRetryIgnorePreviousHosts() != nil {
		elsewhere = in.RetryIgnorePreviousHosts.Value
	}
	if elsewhere {
		out.RetryHostPredicate = []*routev3.RetryPolicy_RetryHostPredicate{
			{Name: "envoy.retry_host_predicates.previous_hosts",
				ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{
					TypedConfig: typed(&previoushostsv3.PreviousHostsPredicate{})}}}
	}
	if in.GetRetryRemoteLocalities().GetValue() {
		out.RetryPriority = &routev3.RetryPolicy_RetryPriority{
			Name: "envoy.retry_priorities.previous_priorities",
			ConfigType: &routev3.RetryPolicy_RetryPriority_TypedConfig{
				TypedConfig: typed(&previousprioritiesv3.PreviousPrioritiesConfig{
					UpdateFrequency: retriesPerPriority})}}
	}
	if in.GetBackoff() != nil {
		out.RetryBackOff = &routev3.RetryPolicy_RetryBackOff{BaseInterval: in.Backoff}
	}
	return out
}

// retryOn splits Istio's list of retry conditions, which may contain status codes, into Envoy's
// conditions and the codes.
func retryOn(text string) (string, []uint32) {
	var conditions []string
	var codes []uint32
	for _, part := range strings.Split(text, ",") {
		part = strings.TrimSpace(part)
		if code, err := strconv.ParseUint(part, 10, 16); err == nil {
			codes = append(codes, uint32(code))
		} else if part != "" {
			conditions = append(conditions, part)
		}
	}
	const byCode = "retriable-status-codes"
	if len(codes) > 0 && !slices.Contains(conditions, byCode) {
		conditions = append(conditions, byCode)
	}
	return strings.Join(conditions, ","), codes
}

func rewrite(action *routev3.RouteAction, in *networking.HTTPRewrite, host string) {
	if in.GetAuthority() != "" {
		host = in.Authority
	}
	if host != "" {
		action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{
			HostRewriteLiteral: host}
	}
	if expression := in.GetUriRegexRewrite(); expression != nil {
		action.RegexRewrite = &matcherv3.RegexMatchAndSubstitute{Pattern: regex(expression.Match),
			Substitution: expression.Rewrite}
	} else if in.GetUri() != "" {
		action.PrefixRewrite = in.Uri
	}
}

func (r *RouteTranslator) redirect(in *networking.HTTPRedirect) *routev3.Route_Redirect {
	out := &routev3.RedirectAction{HostRedirect: in.Authority}
	if in.PrefixRewrite != "" {
		out.PathRewriteSpecifier = &routev3.RedirectAction_PrefixRewrite{
			PrefixRewrite: in.PrefixRewrite}
	} else if in.Uri != "" {
		out.PathRewriteSpecifier = &routev3.RedirectAction_PathRedirect{PathRedirect: in.Uri}
	}
	if in.Scheme != "" {
		out.SchemeRewriteSpecifier = &routev3.RedirectAction_SchemeRedirect{
			SchemeRedirect: in.Scheme}
	}
	switch port := in.RedirectPort.(type) {
	case *networking.HTTPRedirect_Port:
		out.PortRedirect = port.Port
	case *networking.HTTPRedirect_DerivePort:
		if port.DerivePort == networking.HTTPRedirect_FROM_REQUEST_PORT {
			out.PortRedirect = r.Port
		}
	}
	scheme := in.Scheme
	if scheme == "" {
		scheme = map[bool]string{false: "http", true: "https"}[r.TLS]
	}
	if scheme == "http" && out.PortRedirect == 80 || scheme == "https" && out.PortRedirect == 443 {
		out.PortRedirect = 0 // the default port of the scheme, which the URL must not contain
	}
	out.ResponseCode = map[uint32]routev3.RedirectAction_RedirectResponseCode{
		http.StatusFound:             routev3.RedirectAction_FOUND,
		http.StatusSeeOther:          routev3.RedirectAction_SEE_OTHER,
		http.StatusTemporaryRedirect: routev3.RedirectAction_TEMPORARY_REDIRECT,
		http.StatusPermanentRedirect: routev3.RedirectAction_PERMANENT_REDIRECT,
	}[in.RedirectCode] // all other codes become 301
	return &routev3.Route_Redirect{Redirect: out}
}

func directResponse(in *networking.HTTPDirectResponse) *routev3.Route_DirectResponse {
	out := &routev3.DirectResponseAction{Status: in.Status}
	switch body := in.GetBody().GetSpecifier().(type) {
	case *networking.HTTPBody_String_:
		out.Body = &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{
			InlineString: body.String_}}
	case *networking.HTTPBody_Bytes:
		out.Body = &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{
			InlineBytes: body.Bytes}}
	}
	return &routev3.Route_DirectResponse{DirectResponse: out}
}

// isHost reports whether a header is the request's host. A route rewrites the host by other fields.
func isHost(name string) bool {
	return strings.EqualFold(name, "host") || strings.EqualFold(name, ":authority")
}

// hostOf returns the new host of a request according to its header operations, "" if the host does
// not change. The operation set has precedence over add.
func hostOf(in *networking.Headers_HeaderOperations) string {
	for _, headers := range []map[string]string{in.GetSet(), in.GetAdd()} {
		for _, name := range slices.Sorted(maps.Keys(headers)) {
			if isHost(name) {
				return headers[name]
			}
		}
	}
	return ""
}

// headerOptions returns header operations that set or add headers, sorted by name.
func headerOptions(in *networking.Headers_HeaderOperations) []*corev3.HeaderValueOption {
	var out []*corev3.HeaderValueOption
	put := func(headers map[string]string, action corev3.HeaderValueOption_HeaderAppendAction) {
		for _, name := range slices.Sorted(maps.Keys(headers)) {
			if !isHost(name) {
				out = append(out, &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: name,
					Value: headers[name]}, AppendAction: action})
			}
		}
	}
	put(in.GetSet(), corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD)
	put(in.GetAdd(), corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD)
	return out
}
