// Package resolved implements the root helper outrider-resolved@.service, which makes
// systemd-resolved send queries for some domains to the agent's DNS proxy. Each connection of an
// agent has a helper process of its own.
//
// resolved accepts servers and domains per link, but not for loopback and links of networkd. The
// helper therefore creates a link, a TUN device whose packets nobody reads. When the process ends,
// for whatever reason, the kernel deletes the link, and resolved removes its domains. The helper
// ends with its connection, which the kernel closes when the agent ends.
package resolved

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/rpc"
)

// DNSRoute is a request to the helper: systemd-resolved must send queries for names in Domains to
// Server. It replaces the previous route.
type DNSRoute struct {
	Server  netip.AddrPort
	Domains []string // without final dot; "." = all
}

// MaxDomains is resolved's limit of domains per link.
const MaxDomains = 256

const applyTime = 10 * time.Second

// ServeHelper responds to the requests of one connection until it ends or a request fails.
func ServeHelper(socket net.Conn) error {
	connection := rpc.NewConn(socket)
	defer func() { _ = connection.Close() }()
	var link string
	for {
		var r request
		switch err := connection.Receive(time.Time{}, &r); {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, rpc.ErrUnframed):
			return errors.Join(err, connection.SendUnframed(response{Error: "outrider-resolved " +
				"is of a later version than the agent; restart the agent"}))
		case err != nil:
			return err
		}
		answer, err := response{Number: r.Number}, serve(&link, r)
		if err != nil {
			answer.Error = err.Error()
		}
		if err := errors.Join(err, connection.Send(context.Background(), answer)); err != nil {
			return err
		}
	}
}

// serve puts the route of a request in force. The first call creates the link.
func serve(link *string, r request) (err error) {
	if r.Protocol != protocolVersion {
		return fmt.Errorf("protocol version %d is not supported; this outrider-resolved has version "+
			"%d", r.Protocol, protocolVersion)
	}
	if *link == "" {
		if *link, err = newLink(); err != nil {
			return err
		}
	}
	return apply(*link, r.Route)
}

// newLink creates this process's TUN link and assigns an address to it: resolved ignores links
// without an address that is neither loopback nor link-local.
func newLink() (string, error) {
	tun, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open /dev/net/tun: %w", err)
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("create a socket: %w", err)
	}
	defer func() { _ = unix.Close(socket) }()
	link, err := unix.NewIfreq("outrider%d")
	if err != nil {
		return "", err
	}
	link.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	err = unix.IoctlIfreq(tun, unix.TUNSETIFF, link) // the kernel replaces %d by a number
	if err == nil {
		if err = link.SetInet4Addr([]byte{169, 254, 53, 53}); err == nil {
			err = unix.IoctlIfreq(socket, unix.SIOCSIFADDR, link)
		}
	}
	if err == nil {
		// no multicast, so that resolved uses neither LLMNR nor mDNS
		link.SetUint16(unix.IFF_UP | unix.IFF_NOARP)
		err = unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, link)
	}
	if err != nil {
		return "", fmt.Errorf("create a TUN interface: %w", err)
	}
	return link.Name(), nil
}

// apply configures resolved for the link.
func apply(link string, route DNSRoute) error {
	ctx, cancel := context.WithTimeout(context.Background(), applyTime)
	defer cancel()
	domains := []string{"domain", link}
	for _, domain := range route.Domains {
		domains = append(domains, "~"+domain)
	}
	if len(route.Domains) == 0 {
		domains = append(domains, "") // "" stands for an empty list of domains
	}
	for _, arguments := range [][]string{{"default-route", link, "no"}, {"dnssec", link, "no"},
		{"dnsovertls", link, "no"}, {"dns", link, route.Server.String()}, domains} {
		out, err := exec.CommandContext(ctx, "resolvectl", arguments...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("resolvectl %s: %w: %s", arguments[0], err,
				strings.TrimSpace(string(out)))
		}
	}
	return nil
}
