package config

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
)

// Interface is a network interface of the host.
type Interface struct {
	Name      string
	Up        bool
	Addresses []netip.Addr
}

// Host provides the host's properties that Node.Resolve needs.
type Host struct {
	Hostname   func() (string, error)
	Interfaces func() ([]Interface, error) // in the operating system's order
}

// ThisHost returns a Host that queries the operating system.
func ThisHost() Host { return Host{os.Hostname, systemInterfaces} }

// Resolve returns n with empty ID, IP and Domain filled in.
func (n Node) Resolve(host Host) (Node, error) {
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
		n.IP = firstAddress(interfaces).String()
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

// virtualPrefixes returns name prefixes of interfaces to local containers and virtual machines,
// whose addresses are not reachable from other hosts.
func virtualPrefixes() []string {
	return []string{"docker", "br-", "veth", "virbr", "vmnet", "cni", "flannel", "cali", "cilium",
		"podman", "lxc", "lxd",
		"kube-", "nerdctl", "ovs-"}
}

// firstAddress returns the first global unicast address of a physical interface, else of a virtual
// one, else the loopback address.
func firstAddress(interfaces []Interface) netip.Addr {
	second := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for _, i := range interfaces {
		if !i.Up {
			continue
		}
		for _, address := range i.Addresses {
			address = address.Unmap().WithZone("")
			if !address.IsGlobalUnicast() {
				continue
			}
			if !isVirtual(i.Name) {
				return address
			}
			if second.IsLoopback() {
				second = address
			}
		}
	}
	return second
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
	all := make([]Interface, 0, len(system))
	for _, s := range system {
		i := Interface{Name: s.Name, Up: s.Flags&net.FlagUp != 0}
		addresses, err := s.Addrs()
		if err != nil {
			return nil, fmt.Errorf("addresses of %s: %w", s.Name, err)
		}
		for _, a := range addresses {
			if network, ok := a.(*net.IPNet); ok {
				if address, ok := netip.AddrFromSlice(network.IP); ok {
					i.Addresses = append(i.Addresses, address.Unmap())
				}
			}
		}
		all = append(all, i)
	}
	return all, nil
}
