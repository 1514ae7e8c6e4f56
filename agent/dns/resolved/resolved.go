// Package resolved is the root helper that routes domains through systemd-resolved to the DNS
// proxy: outrider-resolved@.service, one process per connection of an agent.
//
// resolved accepts servers and domains per link, but not for loopback and links of networkd.
// Therefore the helper creates a link, a TUN device whose packets nobody reads. The kernel deletes
// it when the process ends, however it ends, and resolved forgets the domains with it. The helper
// ends with its connection, which the kernel closes when the agent ends.
package resolved

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Route is a request: queries for names in Domains go to Server. It replaces the previous one.
type Route struct {
	Server  netip.AddrPort
	Domains []string // without final dot; "." = all
}

// Response is the response to a Route.
type Response struct {
	Error string // "" = the route is in force
}

// MaxDomains is resolved's limit.
const MaxDomains = 256

const (
	maxRequestBytes = 1 << 20
	applyTime       = 10 * time.Second
)

// Serve responds to the requests of one connection.
func Serve(connection io.ReadWriter) error {
	responses := json.NewEncoder(connection)
	limited := &io.LimitedReader{R: connection}
	requests := json.NewDecoder(limited)
	link, err := newLink()
	for err == nil {
		var route Route
		limited.N = maxRequestBytes
		if err := requests.Decode(&route); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err = apply(link, route); err == nil {
			err = responses.Encode(Response{})
		}
	}
	return errors.Join(err, responses.Encode(Response{err.Error()}))
}

// newLink creates the link of this process. Resolved uses it only with an address that is neither a
// loopback one nor of scope link, as the kernel gives to this one.
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
	err = unix.IoctlIfreq(tun, unix.TUNSETIFF, link) // numbers the name
	if err == nil {
		if err = link.SetInet4Addr([]byte{169, 254, 53, 53}); err == nil {
			err = unix.IoctlIfreq(socket, unix.SIOCSIFADDR, link)
		}
	}
	if err == nil {
		link.SetUint16(unix.IFF_UP | unix.IFF_NOARP) // without multicast, hence no LLMNR and mDNS
		err = unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, link)
	}
	if err != nil {
		return "", fmt.Errorf("create a link: %w", err)
	}
	return link.Name(), nil
}

// apply configures resolved for the link.
func apply(link string, route Route) error {
	ctx, cancel := context.WithTimeout(context.Background(), applyTime)
	defer cancel()
	domains := []string{"domain", link}
	for _, domain := range route.Domains {
		domains = append(domains, "~"+domain)
	}
	if len(route.Domains) == 0 {
		domains = append(domains, "") // none
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
