package config

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Interface is a network interface of the host.
type Interface struct {
	Name      string
	Up        bool
	Addresses []netip.Addr
}

// Host provides the host's properties that Node.WithHostDefaults needs.
type Host struct {
	Hostname   func() (string, error)
	Interfaces func() ([]Interface, error) // in the operating system's order
}

// ThisHost returns a Host that queries the operating system.
func ThisHost() Host { return Host{os.Hostname, systemInterfaces} }

// WithHostDefaults fills in an empty ID, IP and Domain. If IP was empty, unset ExtraIPs get an
// address of the other family, if the host has one.
func (n Node) WithHostDefaults(host Host) (Node, error) {
	if n.ID == "" {
		name, err := host.Hostname()
		if err != nil {
			return n, fmt.Errorf("find the host's name for node.id: %w", err)
		}
		n.ID = name + "." + n.Namespace
	}
	if n.IP == "" {
		interfaces, err := host.Interfaces()
		if err != nil {
			return n, fmt.Errorf("find the host's addresses for node.ip: %w", err)
		}
		found := chooseAddresses(interfaces)
		n.IP = found[0].String()
		for _, other := range found[1:] {
			if n.ExtraIPs == nil {
				n.ExtraIPs = []string{other.String()}
			}
		}
	}
	if n.Domain == "" {
		switch n.ServiceRegistry {
		case "Kubernetes":
			n.Domain = n.Namespace + ".svc.cluster.local"
		case "Consul":
			n.Domain = "service.consul"
		}
	}
	return n, nil
}

// ServiceNode returns Envoy's --service-node, type~ip~id~domain, of a resolved Node.
func (n Node) ServiceNode() string {
	return strings.Join([]string{n.Type, n.IP, n.ID, n.Domain}, "~")
}

// virtualPrefixes returns the name prefixes of interfaces to local containers and virtual machines.
// Other hosts cannot reach their addresses.
func virtualPrefixes() []string {
	return []string{"docker", "br-", "veth", "virbr", "vmnet", "cni", "flannel", "cali", "cilium",
		"podman", "lxc", "lxd",
		"kube-", "nerdctl", "ovs-"}
}

// chooseAddresses returns a global unicast address: the first of a physical interface, else of a
// virtual one, else a loopback address. It appends the first address of the other family that a
// physical interface has, if any.
func chooseAddresses(interfaces []Interface) []netip.Addr {
	var physical, virtual []netip.Addr
	for _, i := range interfaces {
		for _, address := range i.Addresses {
			address = address.Unmap().WithZone("")
			switch {
			case !i.Up || !address.IsGlobalUnicast():
			case isVirtual(i.Name):
				virtual = append(virtual, address)
			default:
				physical = append(physical, address)
			}
		}
	}
	first := append(append(slices.Clone(physical), virtual...),
		netip.AddrFrom4([4]byte{127, 0, 0, 1}))[0]
	for _, other := range physical {
		if other.Is4() != first.Is4() {
			return []netip.Addr{first, other}
		}
	}
	return []netip.Addr{first}
}

func isVirtual(name string) bool {
	for _, prefix := range virtualPrefixes() {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

func systemInterfaces() ([]Interface, error) {
	system, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	unusable := unstableAddresses()
	all := make([]Interface, 0, len(system))
	for _, s := range system {
		i := Interface{Name: s.Name, Up: s.Flags&net.FlagUp != 0}
		addresses, err := s.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list the addresses of network interface %s: %w", s.Name, err)
		}
		for _, a := range addresses {
			if network, ok := a.(*net.IPNet); ok {
				if address, ok := netip.AddrFromSlice(network.IP); ok && !unusable[address] {
					i.Addresses = append(i.Addresses, address.Unmap())
				}
			}
		}
		all = append(all, i)
	}
	return all, nil
}

// unstableFlags mark IPv6 addresses that may disappear or that do not work: IFA_F_TEMPORARY,
// IFA_F_DADFAILED, IFA_F_DEPRECATED and IFA_F_TENTATIVE.
const unstableFlags = 0x01 | 0x08 | 0x20 | 0x40

// unstableAddresses returns this host's IPv6 addresses with one of unstableFlags.
func unstableAddresses() map[netip.Addr]bool {
	found := map[netip.Addr]bool{}
	// The fields of a line are address, index, prefix length, scope, flags and name.
	text, err := os.ReadFile("/proc/self/net/if_inet6")
	if err != nil {
		return found // no IPv6
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 6 {
			continue
		}
		bytes, err := hex.DecodeString(fields[0])
		flags, wrong := strconv.ParseUint(fields[4], 16, 32)
		if address, ok := netip.AddrFromSlice(bytes); err == nil && wrong == nil && ok {
			found[address] = flags&unstableFlags != 0
		}
	}
	return found
}
