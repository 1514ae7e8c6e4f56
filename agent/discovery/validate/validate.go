// Package validate checks the spec of a single object. It reports at least every error that Istio
// reports for supported fields, and reports unsupported fields by name.
package validate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	extensions "istio.io/api/extensions/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	networkingbeta "istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
)

// Object returns an object's findings, sorted by field. An object with errors is not applied; there
// may also be warnings and notes.
func Object(o *object.Object) []object.Finding {
	c := &checker{namespace: o.Namespace}
	switch spec := o.Spec.(type) {
	case *networking.ServiceEntry:
		c.serviceEntry(spec)
	case *networking.DestinationRule:
		c.destinationRule(spec)
	case *networking.VirtualService:
		c.virtualService(spec)
	case *networking.WorkloadEntry:
		c.endpoint("", spec, nil)
		if !model.IsHealthy(o) {
			c.warn("",
				"the annotation proxy.istio.io/health-checks-enabled says that its health is asked, and no "+
					"condition Healthy of its status is True: it gets no requests",
				"remove the annotation, or write the status")
		}
	case *networking.WorkloadGroup:
		c.workloadGroup(spec)
	case *networking.Gateway:
		c.gateway(o.Name, spec)
	case *networking.EnvoyFilter:
		c.envoyFilter(o, spec)
	case *networking.Sidecar:
		c.sidecar(spec, o.Namespace)
	case *security.PeerAuthentication:
		c.peerAuthentication(spec)
	case *security.RequestAuthentication:
		c.requestAuthentication(spec)
	case *security.AuthorizationPolicy:
		c.authorizationPolicy(o, spec)
	case *networkingbeta.ProxyConfig:
		c.proxyConfig(spec)
	case *telemetry.Telemetry:
		c.telemetry(spec)
	case *extensions.WasmPlugin:
		c.wasmPlugin(spec)
	case *extensions.TrafficExtension:
		c.trafficExtension(spec)
	}
	slices.SortStableFunc(c.findings, func(a, b object.Finding) int {
		return cmp.Compare(a.Field, b.Field)
	})
	return c.findings
}

// Retries returns the findings of a retry policy that is not in a VirtualService.
func Retries(field string, r *networking.HTTPRetry) []object.Finding {
	c := &checker{}
	c.retries(field, r)
	return c.findings
}

// Localities returns the findings of locality load balancing settings that are not in a
// DestinationRule.
func Localities(field string, l *networking.LocalityLoadBalancerSetting) []object.Finding {
	c := &checker{}
	// the rule that these settings need outlier detection applies only to DestinationRules
	c.localityLoadBalancer(field, l, &networking.OutlierDetection{})
	return c.findings
}

// ClientTLS returns the findings of TLS settings that are not in a DestinationRule.
func ClientTLS(field string, t *networking.ClientTLSSettings) []object.Finding {
	c := &checker{}
	c.clientTLS(field, t)
	return c.findings
}

// ServiceName returns the findings of the name of an extension provider's service: NAMESPACE/HOST,
// or HOST.
func ServiceName(field, service string) []object.Finding {
	c := &checker{}
	namespace, host, qualified := model.SplitHost(service)
	if qualified && !isDNSLabel(namespace) {
		c.fail(field, fmt.Sprintf("%q is no namespace", namespace), "write NAMESPACE/HOST")
	}
	if _, err := netip.ParseAddr(host); qualified || err != nil {
		c.host(field, host, false)
	}
	return c.findings
}

// Header returns the findings of a header that is sent to a provider's service.
func Header(field, name, value string) []object.Finding {
	c := &checker{}
	if !headerName.MatchString(name) {
		c.fail(field+".name", fmt.Sprintf("%q is no header's name", name),
			"write letters, digits and -")
	}
	if !isHeaderText(value) {
		c.fail(field+".value", "has a line break or a zero byte", "remove it")
	}
	return c.findings
}

type checker struct {
	namespace string // namespace of the object that is validated
	sidecars  bool   // the VirtualService is for sidecars, or is a delegate
	findings  []object.Finding
}

func (c *checker) fail(field, message, fix string) {
	c.findings = append(c.findings, object.Finding{Field: field, Severity: condition.Error,
		Message: message, Fix: fix})
}

func (c *checker) warn(field, message, fix string) {
	c.findings = append(c.findings, object.Finding{Field: field, Severity: condition.Warning,
		Message: message, Fix: fix})
}

// absent reports an error for an unsupported field whose omission would send requests to other
// destinations, or give more clients access.
func (c *checker) absent(field string) {
	c.fail(field, "is not carried out by this version of Outrider", "remove it")
}

// without reports a warning for an unsupported field that affects neither routing nor access.
func (c *checker) without(field string) {
	c.warn(field, "is not carried out by this version of Outrider and has no effect",
		"remove it to be rid of this warning")
}

const highestPort = 65535

func (c *checker) port(field string, number uint32) {
	if number < 1 || number > highestPort {
		c.fail(field, fmt.Sprintf("%d is not a valid port", number),
			"write a number from 1 to 65535")
	}
}

// duration checks that a duration is at least one millisecond and has whole milliseconds. zero
// permits 0, which means "off".
func (c *checker) duration(field string, d *durationpb.Duration, zero bool) {
	if d == nil {
		return
	}
	v := d.AsDuration()
	switch {
	case v == 0 && zero:
	case v < time.Millisecond:
		c.fail(field, fmt.Sprintf("%v is too short", v), "write at least 1ms")
	case v%time.Millisecond != 0:
		c.fail(field, fmt.Sprintf("%v is finer than a millisecond", v), "write whole milliseconds")
	}
}

func (c *checker) natural(field string, v int32) {
	if v < 0 {
		c.fail(field, fmt.Sprintf("%d is negative", v), "")
	}
}

func (c *checker) percent(field string, p *networking.Percent) {
	if p != nil && !(p.Value >= 0 && p.Value <= 100) {
		c.fail(field+".value", fmt.Sprintf("%v is no percentage", p.Value),
			"write a number from 0 to 100")
	}
}
