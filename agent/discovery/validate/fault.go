package validate

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

func (c *checker) fault(field string, f *networking.HTTPFaultInjection) {
	if f == nil {
		return
	}
	if f.Delay == nil && f.Abort == nil {
		c.fail(field, "the fault does nothing", "write delay or abort in it")
	}
	if d := f.Delay; d != nil {
		c.faultShare(field+".delay", d.Percentage, d.Percent != 0) //nolint:staticcheck // still valid
		if d.Percent < 0 || d.Percent > 100 {                      //nolint:staticcheck // still valid
			c.fail(field+".delay.percent", "is no percentage", "write a number from 0 to 100")
		}
		switch delay := d.HttpDelayType.(type) {
		case *networking.HTTPFaultInjection_Delay_FixedDelay:
			c.duration(field+".delay.fixedDelay", delay.FixedDelay, false)
		case nil:
			c.warn(field+".delay.fixedDelay", "is missing: nothing is delayed", "say how long")
		default:
			c.absent(field + ".delay.exponentialDelay")
		}
	}
	if a := f.Abort; a != nil {
		c.faultShare(field+".abort", a.Percentage, false)
		switch kind := a.ErrorType.(type) {
		case *networking.HTTPFaultInjection_Abort_HttpStatus:
			if kind.HttpStatus < 200 || kind.HttpStatus > 599 {
				c.fail(field+".abort.httpStatus", fmt.Sprintf("%d is no status of a response",
					kind.HttpStatus), "write a number from 200 to 599")
			}
		case *networking.HTTPFaultInjection_Abort_GrpcStatus:
			if _, ok := model.GRPCStatus(kind.GrpcStatus); !ok {
				c.fail(field+".abort.grpcStatus", fmt.Sprintf("%q is no gRPC status",
					kind.GrpcStatus), "write a name such as UNAVAILABLE")
			}
		case nil:
			c.warn(field+".abort", "it is not said with what: nothing is aborted",
				"write httpStatus or grpcStatus in it")
		default:
			c.absent(field + ".abort.http2Error")
		}
	}
}

// faultShare checks the percentage of requests with a fault. old reports whether the deprecated
// field for it is set.
func (c *checker) faultShare(field string, p *networking.Percent, old bool) {
	const least = 0.0001 // smallest percentage: Envoy counts in millionths
	c.percent(field+".percentage", p)
	switch {
	case p == nil && old:
		c.warn(field+".percent", "is the old form of percentage", "write percentage: {value: N}")
	case p == nil:
		c.warn(field+".percentage", "is missing: no request meets the fault",
			"write percentage: {value: 100}")
	case p.Value > 0 && p.Value < least:
		c.fail(field+".percentage.value", fmt.Sprintf("%v is too small", p.Value),
			"write at least 0.0001")
	}
}

// corsMethods are the methods that package net/http defines, and the wildcard.
var corsMethods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut,
	http.MethodPatch, http.MethodDelete, http.MethodConnect,
	http.MethodOptions, http.MethodTrace, "*"}

func (c *checker) cors(field string, p *networking.CorsPolicy) {
	if p == nil {
		return
	}
	for i, origin := range p.AllowOrigins {
		path := fmt.Sprintf("%s.allowOrigins[%d]", field, i)
		if origin.GetMatchType() == nil {
			c.fail(path, "it is not said what is matched", "write exact, prefix or regex in it")
		}
		c.stringMatch(path, origin)
		if _, ok := origin.GetMatchType().(*networking.StringMatch_Exact); ok &&
			origin.GetExact() == "" {
			c.fail(path+".exact", "is empty", "write an origin such as https://example.com")
		}
	}
	if len(p.AllowOrigin) > 0 { //nolint:staticcheck // deprecated, still valid YAML
		if len(p.AllowOrigins) > 0 {
			c.warn(field+".allowOrigin", "has no effect beside allowOrigins", "remove it")
		} else {
			c.warn(field+".allowOrigin", "is the old form of allowOrigins",
				"write allowOrigins: [{exact: ...}]")
		}
	}
	for i, method := range p.AllowMethods {
		if !slices.Contains(corsMethods, method) {
			c.fail(fmt.Sprintf("%s.allowMethods[%d]", field, i), fmt.Sprintf("%q is no method",
				method), "write one such as GET, in capitals")
		}
	}
	for kind, names := range map[string][]string{"allowHeaders": p.AllowHeaders,
		"exposeHeaders": p.ExposeHeaders} {
		for i, name := range names {
			if name != "*" {
				c.header(fmt.Sprintf("%s.%s[%d]", field, kind, i), name)
			}
		}
	}
	if age := p.MaxAge; age != nil && (age.AsDuration() < time.Second || age.Nanos != 0) {
		c.fail(field+".maxAge", "must be whole seconds, at least one", "write 24h or 600s")
	}
}
