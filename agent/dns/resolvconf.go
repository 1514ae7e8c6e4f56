package dns

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"

	"outrider.org/outrider/agent/watch"
)

// Files with the host's resolvers. If the first contains only systemd-resolved's stub, the second
// is used, which resolved writes and which contains its upstreams. Queries to the stub could return
// to this proxy.
const (
	resolvConf  = "/etc/resolv.conf"
	resolvedOwn = "/run/systemd/resolve/resolv.conf"
)

// isStub reports whether an address is a stub of systemd-resolved.
func isStub(a netip.Addr) bool {
	return a == netip.AddrFrom4([4]byte{127, 0, 0, 53}) || a == netip.AddrFrom4([4]byte{127, 0, 0, 54})
}

// resolvers are the DNS settings of this host.
type resolvers struct {
	addresses []string // with port
	search    string   // first search domain
}

// readResolvers reads the host's resolvers, except those for which own returns true.
func readResolvers(files []string, own func(netip.AddrPort) bool) (resolvers, error) {
	var r resolvers
	for _, file := range files {
		c, err := dns.ClientConfigFromFile(file)
		if err != nil {
			if r.addresses == nil && file == files[0] {
				return r, fmt.Errorf("read resolvers: %w", err)
			}
			continue
		}
		if len(c.Search) > 0 && r.search == "" {
			r.search = c.Search[0]
		}
		for _, server := range c.Servers {
			address, err := netip.ParseAddr(server)
			if err != nil || isStub(address) || own(netip.AddrPortFrom(address, 53)) {
				continue
			}
			r.addresses = append(r.addresses, net.JoinHostPort(server, "53"))
		}
		if len(r.addresses) > 0 {
			break
		}
	}
	return r, nil
}

// resolvDelays make the watcher report once for several events of the same change.
var resolvDelays = watch.Delays{Debounce: 20 * time.Millisecond, MaxDelay: 200 * time.Millisecond}

// watchFiles returns a watcher of the files.
func watchFiles(files []string, log *slog.Logger) (*watch.Watcher, error) {
	w := watch.New(watch.Options{Delays: resolvDelays, Logger: log})
	if err := w.SetPaths(files); err != nil {
		return nil, fmt.Errorf("watch resolvers: %w", err)
	}
	return w, nil
}
