package agent

import (
	"context"
	"net"
	"net/netip"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"outrider.org/outrider/agent/capture"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
)

// captureState is below /run: the helper's file, which exists while it has settings.
const captureState = "outrider-capture"

// newCapture returns the part that has outrider-capture redirect connections.
func newCapture(
	b *base, c *config.Config, supervisor *epoch.Supervisor,
) *capture.Controller {
	users := capture.Users{Agent: userID("outrider"), Envoy: userID(c.Envoy.User)}
	settings := captureSettings(c, b.options.Config.Instance)
	if err := keepClosed(filepath.Join(c.Paths.StateDir, closedName), settings); err != nil {
		b.logOf("capture").Warn("cannot persist what outrider-capture-early.service closes",
			"error", err)
	}
	return capture.NewController(capture.ControllerOptions{
		Socket:   captureSocket(c.Paths.RuntimeDir),
		State:    filepath.Join("/run", captureState, b.options.Config.Instance, "state.json"),
		Settings: settings, Users: users,
		Envoy: serving{supervisor}, Board: b.board, Logger: b.logOf("capture")})
}

// userID returns the number of a user, or the largest, which nobody has.
func userID(name string) uint32 {
	const nobody = ^uint32(0)
	found, err := user.Lookup(name)
	if err != nil {
		return nobody
	}
	id, err := strconv.ParseUint(found.Uid, 10, 32)
	if err != nil {
		return nobody
	}
	return uint32(id)
}

// serving implements capture.Envoy.
type serving struct{ *epoch.Supervisor }

func (s serving) Serves() (live bool, half time.Time) {
	e, ok := liveEpoch(s.Supervisor)
	return ok, e.HalfDrained(time.Now())
}

// captured is the proxy for the workload's health.
type captured struct {
	*epoch.Proxy
	capture *capture.Controller
}

// interceptionTime bounds how long the workload's health waits for the rules.
const interceptionTime = 10 * time.Second

// WaitReady implements health.Proxy. Without the rules, connections of the mesh would reach the
// application past Envoy, which ends their TLS.
func (c captured) WaitReady(ctx context.Context, progress func(reason string)) string {
	reason := c.Proxy.WaitReady(ctx, progress)
	if reason == "" {
		c.capture.AwaitInbound(ctx, interceptionTime)
	}
	return reason
}

// captureSettings returns the settings of [capture], nil if nothing is captured.
func captureSettings(c *config.Config, instance string) *capture.Settings {
	if c.Capture.Mode == "none" {
		return nil
	}
	inbound := c.InboundPorts()
	s := &capture.Settings{Instance: instance,
		Inbound: capture.Ports{All: inbound.All,
			List: portNumbers(inbound.List)},
		ExcludeInbound:       portNumbers(c.Capture.ExcludeInboundPorts),
		Outbound:             networks(c.Capture.OutboundCIDRs),
		ExcludeOutbound:      networks(c.Capture.ExcludeOutboundCIDRs),
		ExcludeOutboundPorts: portNumbers(c.Capture.ExcludeOutboundPorts),
		Transparent:          c.Capture.Mode == "tproxy",
		FailClosed:           c.Capture.Fail == "closed",
		InboundClosed:        c.ClosedInbound(),
		Trial:                c.Capture.Trial,
		Units:                c.Capture.Units,
		ExcludeUnits:         c.Capture.ExcludeUnits,
	}
	if c.Capture.DNS {
		s.DNSPort = portOf(c.DNS.Listen)
	}
	s.OwnPorts = ownPorts(c)
	return s
}

// ownPorts returns the ports of the agent, and of Envoy's listeners for the agent.
func ownPorts(c *config.Config) (ports []uint16) {
	for _, address := range []string{c.Status.Address, c.Status.ReadyAddress(),
		c.Telemetry.PrometheusAddress} {
		if port := portOf(address); port > 0 {
			ports = append(ports, port)
		}
	}
	return ports
}

func captureSocket(runtimeDir string) string {
	return filepath.Join(runtimeDir, "capture.sock")
}

// portOf returns the port of an address, 0 if the address is "".
func portOf(address string) uint16 {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return 0
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return uint16(port)
}

func portNumbers(ports []int) []uint16 {
	var all []uint16
	for _, p := range ports {
		all = append(all, uint16(p))
	}
	return all
}

// networks parses validated texts: "*", networks and addresses.
func networks(texts []string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		if text == "*" {
			return []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"),
				netip.MustParsePrefix("::/0")}
		}
		if network, err := netip.ParsePrefix(text); err == nil {
			all = append(all, network.Masked())
		} else if address, err := netip.ParseAddr(text); err == nil {
			all = append(all, netip.PrefixFrom(address, address.BitLen()))
		}
	}
	return all
}
