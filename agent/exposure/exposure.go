// Package exposure finds applications that other hosts can reach without the mutual TLS that the
// mesh requires. It compares the listening sockets of this host with the policy of the mesh and
// with the interception rules in force.
//
//	MutualTLSPolicy   ports with mutual TLS         -+
//	sockets           programs that listen          -+-> Checker.look -> Report: condition,
//	Rules             what is captured or rejected  -+                   readiness, status
package exposure

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/sockdiag"
)

// ConditionBypassed is active while an application is reachable without the mutual TLS that the
// mesh requires.
const ConditionBypassed = "mutual-tls-bypassed"

// MutualTLSPolicy reports whether a port requires mutual TLS (strict), by which object (zero:
// unknown), and whether the port is a service port of this node (ownPort). A nil MutualTLSPolicy
// requires mutual TLS for no port.
type MutualTLSPolicy = func(port uint16) (policy resource.Origin, strict, ownPort bool)

// InterceptionRules are the interception rules in force.
type InterceptionRules interface {
	// ReachableDirectly returns a function that reports whether other hosts reach an address of
	// this host without passing Envoy, with the reason and the fix. It returns nil while the rules
	// are unknown.
	ReachableDirectly() func(to netip.AddrPort) (direct bool, why, fix string)
	Changed() <-chan struct{} // closed at the next change of the rules
}

// Options configure a Checker.
type Options struct {
	Policy func() MutualTLSPolicy
	Rules  InterceptionRules
	// IsCaptured reports whether [capture] inbound_ports contains a port.
	IsCaptured func(port uint16) bool
	// ExclusionReason returns the reason why the configuration exempts a port from mutual TLS, ""
	// if it does not.
	ExclusionReason func(port uint16) string
	// IsEnvoySocket reports whether a socket is one of Envoy's listeners.
	IsEnvoySocket func(sockdiag.Socket) bool
	// EpochsChanged returns a channel that is closed at the next change of an epoch.
	EpochsChanged func() <-chan struct{}
	// ListenersACKed receives a value when Envoy has accepted listeners.
	ListenersACKed <-chan struct{}
	Conditions     *condition.Registry
}

// Report is the result of the last check.
type Report struct {
	Exposed          []ExposedPort
	OutsideMutualTLS []PortOutsideMutualTLS
	unknown          bool // ports require mutual TLS, but the rules are not known yet
}

// ExposedPort is a port that other hosts can reach although the mesh requires mutual TLS.
type ExposedPort struct {
	Port      uint16
	Addresses []netip.AddrPort // addresses that the application listens on
	Families  []string         // IPv4, IPv6
	// object that requires mutual TLS; zero: unknown object of the upstream server
	Policy   resource.Origin
	Why, Fix string
}

// String returns a sentence with everything except the fix.
func (e ExposedPort) String() string {
	addresses := make([]string, len(e.Addresses))
	for i, a := range e.Addresses {
		addresses[i] = a.String()
	}
	by := "the upstream server"
	if e.Policy != (resource.Origin{}) {
		by = fmt.Sprintf("%s at %s:%d", e.Policy.Object(), e.Policy.File, e.Policy.Line)
	}
	return fmt.Sprintf("other hosts reach port %d (%s) over %s without the mutual TLS that %s "+
		"requires: %s", e.Port, strings.Join(addresses, ", "), strings.Join(e.Families, " and "), by,
		e.Why)
}

// PortOutsideMutualTLS is a port that the configuration exempts from mutual TLS.
type PortOutsideMutualTLS struct {
	Port   uint16
	Reason string // configuration key or description of the port
}

// Checker finds exposed ports. Its methods may be called concurrently.
type Checker struct {
	Options
	lifecycle.Readiness
	checking sync.Mutex
	counting sync.Mutex // held by PreInterceptionConnections: listing all connections is expensive
	report   atomic.Pointer[Report]
}

// New returns a Checker.
func New(o Options) *Checker {
	c := &Checker{Options: o}
	c.report.Store(&Report{})
	return c
}

// Name returns the name of this component.
func (c *Checker) Name() string { return "exposure" }

// every is the interval of checks. Polling is necessary because no event reports that an
// application starts to listen.
const every = 2 * time.Second

// Run checks after each change of the rules, the epochs and the policy, and periodically.
func (c *Checker) Run(ctx context.Context) error {
	c.MarkReady()
	for ctx.Err() == nil {
		rules, epochs := c.Rules.Changed(), c.EpochsChanged()
		c.FindExposedPorts()
		select {
		case <-ctx.Done():
		case <-rules:
		case <-epochs:
		case <-c.ListenersACKed:
		case <-time.After(every):
		}
	}
	return nil
}

// Report returns the result of the last check.
func (c *Checker) Report() Report { return *c.report.Load() }

// NotReadyReason returns the reason why the agent is not ready: a port that is, or may be,
// reachable without the required mutual TLS. It returns "" if there is none. It does not block.
func (c *Checker) NotReadyReason() string {
	if c.report.Load().unknown {
		return "waiting for outrider-capture: not known whether ports are reachable past mutual TLS"
	}
	return c.report.Load().sentence()
}

// most bounds the ports that a sentence names.
const most = 5

func (r Report) sentence() string {
	var all []string
	for i, e := range r.Exposed {
		if i == most {
			all = append(all, fmt.Sprintf("and %d more ports: run \"outrider mesh check\"",
				len(r.Exposed)-most))
			break
		}
		all = append(all, e.String()+"; "+e.Fix)
	}
	return strings.Join(all, "; ")
}

// FindExposedPorts compares sockets, policy and rules now.
func (c *Checker) FindExposedPorts() {
	c.checking.Lock()
	defer c.checking.Unlock()
	var found Report
	if policy := c.Policy(); policy != nil {
		sockets, err := sockdiag.ListeningSockets()
		if err != nil {
			return // the report of the last check stays valid
		}
		found = c.look(policy, sockets, hostFamilies())
	}
	c.report.Store(&found)
	if sentence := found.sentence(); sentence != "" {
		c.Conditions.Raise(ConditionBypassed, condition.Error, sentence)
	} else {
		c.Conditions.Clear(ConditionBypassed)
	}
}

// look computes the report of FindExposedPorts without side effects. host has one address of this
// host for each address family that other hosts can use.
func (c *Checker) look(policy MutualTLSPolicy, sockets []sockdiag.Socket,
	host []netip.Addr) Report {
	ports := map[uint16]*ExposedPort{}
	outside := map[uint16]PortOutsideMutualTLS{}
	reach := c.Rules.ReachableDirectly()
	for _, s := range sockets {
		port := s.Address.Port()
		by, counts := c.counts(policy, s)
		if !counts {
			continue
		}
		if reason := c.ExclusionReason(port); reason != "" {
			outside[port] = PortOutsideMutualTLS{port, reason}
			continue
		}
		if c.IsEnvoySocket(s) {
			continue
		}
		if reach == nil {
			return Report{unknown: true}
		}
		for _, to := range reached(s, host) {
			direct, why, fix := reach(netip.AddrPortFrom(to, port))
			if !direct {
				continue
			}
			e := ports[port]
			if e == nil {
				e = &ExposedPort{Port: port, Policy: by, Why: why, Fix: fix}
				ports[port] = e
			}
			e.add(s.Address, to)
		}
	}
	var r Report
	for _, e := range ports {
		// sort, so that equal reports have equal sentences
		slices.SortFunc(e.Addresses, netip.AddrPort.Compare)
		slices.Sort(e.Families)
		r.Exposed = append(r.Exposed, *e)
	}
	for _, o := range outside {
		r.OutsideMutualTLS = append(r.OutsideMutualTLS, o)
	}
	slices.SortFunc(r.Exposed, func(a, b ExposedPort) int { return int(a.Port) - int(b.Port) })
	slices.SortFunc(r.OutsideMutualTLS,
		func(a, b PortOutsideMutualTLS) int { return int(a.Port) - int(b.Port) })
	return r
}

// counts reports whether the mesh requires mutual TLS for a listening socket that is not on
// loopback. It considers ports of this node, ports in [capture] inbound_ports and ports that the
// configuration exempts.
func (c *Checker) counts(policy MutualTLSPolicy, s sockdiag.Socket) (by resource.Origin,
	counts bool) {
	if s.Address.Addr().Unmap().IsLoopback() {
		return by, false
	}
	by, strict, own := policy(s.Address.Port())
	return by, strict && (own || c.IsCaptured(s.Address.Port()) ||
		c.ExclusionReason(s.Address.Port()) != "")
}

func (e *ExposedPort) add(at netip.AddrPort, to netip.Addr) {
	if !slices.Contains(e.Addresses, at) {
		e.Addresses = append(e.Addresses, at)
	}
	if family := familyOf(to); !slices.Contains(e.Families, family) {
		e.Families = append(e.Families, family)
	}
}
