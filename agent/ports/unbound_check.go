package ports

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/hostconflict"
	"outrider.org/outrider/agent/sockdiag"
)

// check updates the condition and resends the listeners whose address is free. It reports whether
// any listener cannot be bound.
func (u *UnboundListeners) check(ctx context.Context) (found bool) {
	host := u.host()
	u.mu.Lock()
	var problems []discovery.Problem
	free := map[uint64][]string{} // listener names by stream ID
	for _, of := range u.counting() {
		current := u.listeners(of.node)
		maps.DeleteFunc(of.unbound, func(name string, _ *unbound) bool { return current[name] == nil })
		for name, one := range of.unbound {
			p, blocked := host.problem(one)
			if now := time.Now(); !blocked && !now.Before(one.again) {
				one.again, one.sent = now.Add(bindPause), true
				free[of.stream] = append(free[of.stream], name)
			}
			// If the address is free and the listener was resent, its problem remains until Envoy
			// responds.
			if blocked || !one.sent || one.problem == (discovery.Problem{}) {
				one.problem = p
			}
			problems = append(problems, one.problem)
		}
	}
	slices.SortFunc(problems, discovery.Problem.Compare)
	u.problems = slices.Compact(problems)
	u.mu.Unlock()
	if len(problems) == 0 {
		u.Conditions.Clear(ConditionUnbound)
		return false
	}
	u.Conditions.Raise(ConditionUnbound, condition.Error, sentenceOf(u.problems))
	for stream, names := range free {
		u.ResendListeners(ctx, stream, names)
	}
	return true
}

// sentenceOf joins the sentences of at most maxShown problems.
func sentenceOf(problems []discovery.Problem) string {
	var all []string
	for _, p := range problems[:min(len(problems), maxShown)] {
		all = append(all, p.String())
	}
	if more := len(problems) - maxShown; more > 0 {
		all = append(all, fmt.Sprintf("and %d more: run \"outrider mesh check\"", more))
	}
	return strings.Join(all, "; ")
}

// addresses contains the sockets and addresses of the host at the time of a check.
type addresses struct {
	*UnboundListeners
	sockets map[sockdiag.Protocol][]sockdiag.Socket
	own     []net.Addr
	known   map[uint64]string // descriptions of the previous check, by socket cookie
}

// host returns the sockets and addresses of the host. If no stream has answered yet, it returns
// none, because no listener needs a check.
func (u *UnboundListeners) host() addresses {
	found := addresses{UnboundListeners: u, known: u.programs,
		sockets: map[sockdiag.Protocol][]sockdiag.Socket{}}
	u.programs = map[uint64]string{}
	u.mu.Lock()
	empty := len(u.streams) == 0
	u.mu.Unlock()
	if empty {
		return found
	}
	// If sockets cannot be listed, all addresses count as free: Envoy refuses the listener again if
	// its address is not.
	found.sockets[sockdiag.TCP], _ = u.Host.Sockets()
	_ = sockdiag.EachSocket(sockdiag.UDP, func(s sockdiag.Socket) {
		found.sockets[sockdiag.UDP] = append(found.sockets[sockdiag.UDP], s)
	}, sockdiag.Unconnected)
	found.own, _ = net.InterfaceAddrs()
	return found
}

// Errors of the kernel as Envoy quotes them.
const (
	addressInUse   = "Address already in use"
	addressMissing = "Cannot assign requested address"
)

// problem describes a listener that cannot be bound. blocked reports whether another attempt would
// fail: a socket still occupies the address, or the host still lacks it.
func (a addresses) problem(one *unbound) (p discovery.Problem, blocked bool) {
	at, err := netip.ParseAddr(one.address.GetAddress())
	protocol := sockdiag.TCP
	if one.address.GetProtocol() == corev3.SocketAddress_UDP {
		protocol = sockdiag.UDP
	}
	kind := cmp.Or(one.by.Kind, "listener")
	message := fmt.Sprintf("nothing listens on %s: ", shown(one.address))
	fix := "it is tried again every minute"
	switch {
	case err != nil:
		message += one.reason
	case one.reason == addressInUse:
		holder, found := hostconflict.FindPortHolder(
			netip.AddrPortFrom(at, uint16(one.address.GetPortValue())),
			one.address.GetIpv4Compat(), a.sockets[protocol])
		if blocked = found; found {
			message += "the port is taken by " + a.describe(holder)
			fix = fmt.Sprintf("end it, or give the %s another port; it is tried again by itself "+
				"once the port is free", kind)
		} else {
			message += "the port is taken by a socket that does not listen"
		}
	case one.reason == addressMissing:
		blocked = !a.has(at)
		message += "this host does not have the address"
		fix = fmt.Sprintf("correct the address of the %s, or add it to the host; it is tried again by "+
			"itself once the host has it", kind)
	default:
		message += one.reason
	}
	if one.by.File == "" {
		return discovery.Problem{Severity: condition.Error, Message: message, Fix: fix}, blocked
	}
	return object.ProblemAt(one.by, condition.Error, message, fix), blocked
}

// has reports whether the host has an address.
func (a addresses) has(at netip.Addr) bool {
	return slices.ContainsFunc(a.own, func(own net.Addr) bool {
		network, err := netip.ParsePrefix(own.String())
		return err == nil && network.Addr().WithZone("") == at.WithZone("")
	})
}

// describe describes the program that has a socket open. It determines the program only once per
// socket.
func (a addresses) describe(s sockdiag.Socket) string {
	a.programs[s.Cookie] = cmp.Or(a.programs[s.Cookie], a.known[s.Cookie])
	if a.programs[s.Cookie] == "" {
		a.programs[s.Cookie] = a.Host.DescribeSocketOwner(s)
	}
	return a.programs[s.Cookie]
}

// shown returns an address as text: 0.0.0.0:80, [::]:443/udp.
func shown(a *corev3.SocketAddress) string {
	text := net.JoinHostPort(a.GetAddress(), strconv.Itoa(int(a.GetPortValue())))
	if a.GetProtocol() == corev3.SocketAddress_UDP {
		text += "/udp"
	}
	return text
}
