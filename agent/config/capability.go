package config

// capability is something that a key asks for and that not every version of Outrider has. Its text completes "needs …".
type capability string

const (
	relay            capability = "the relay to an upstream xDS server"
	directUpstream   capability = "an Envoy that connects to an upstream xDS server itself"
	dynamicBootstrap capability = "a bootstrap that comes from upstream"
	xdsTap           capability = "the xDS tap"
	registration     capability = "registration with a WorkloadGroup"
	proxyless        capability = "proxyless gRPC"
	certificateEpoch capability = "new epochs when certificates change"
	certificateCA    capability = "certificates from istiod's CA"
	spire            capability = "certificates from SPIRE"
	workloadHealth   capability = "the workload's readiness reported upstream"
	dnsProxy         capability = "the DNS proxy"
	interception     capability = "transparent interception"
	tokenExchange    capability = "the token exchange (STS)"
)

// missing lists what this version does not have yet. A capability that has come is taken off this list, and its keys are
// accepted.
func missing() map[capability]bool {
	return map[capability]bool{
		relay:            true,
		directUpstream:   true,
		dynamicBootstrap: true,
		xdsTap:           true,
		registration:     true,
		proxyless:        true,
		certificateEpoch: true,
		certificateCA:    true,
		spire:            true,
		workloadHealth:   true,
		dnsProxy:         true,
		interception:     true,
		tokenExchange:    true,
	}
}

// unavailable tells which missing capability the value of a key needs, "" if none. The default needs none, nor what an empty
// one stands for, which Show spells out.
func (k key) unavailable(missing map[capability]bool) capability {
	if k.isDefault() || k.derived != nil && k.get() == k.derived() {
		return ""
	}
	if text, ok := k.get().(string); ok && missing[k.valueCapability[text]] {
		return k.valueCapability[text]
	}
	if missing[k.capability] {
		return k.capability
	}
	return ""
}
