package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// ports checks a list of port numbers.
func ports(value any) *problem {
	list, ok := value.([]int)
	if !ok {
		list = value.(Ports).List
	}
	for _, port := range list {
		if port < 1 || port > highestPort {
			return notPort(strconv.Itoa(port))
		}
	}
	return nil
}

const highestPort = 65535

// notPort returns the problem of an invalid port number.
func notPort(number string) *problem {
	return problemf(fmt.Sprintf("write a number from 1 to %d", highestPort),
		"%s is not a valid port", number)
}

// portOrOff checks a port number; 0 = off.
func portOrOff(value any) *problem {
	if port := value.(int); port < 0 || port > highestPort {
		p := notPort(strconv.Itoa(port))
		p.fix += ", or 0 for off"
		return p
	}
	return nil
}

// address returns a check like that of text, whose message names the port if only the port is
// invalid.
func address(allowed string, ok func(string) bool) check {
	return func(value any) *problem {
		host, port, err := net.SplitHostPort(value.(string))
		if number, notNumber := strconv.Atoi(port); err == nil && notNumber == nil &&
			(number < 1 || number > highestPort) && (host == "" || isHost(host)) {
			return notPort(port)
		}
		return text(allowed, ok)(value)
	}
}

// splitAddress splits host:port. ok is false if the syntax is invalid or the port is not 1 to
// 65535.
func splitAddress(address string) (host string, port int, ok bool) {
	host, number, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, false
	}
	port, err = strconv.Atoi(number)
	if err != nil || port < 1 || port > highestPort || strings.HasPrefix(number, "+") {
		return "", 0, false
	}
	return host, port, true
}

var hostName = regexp.MustCompile(
	`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$`)

func isHost(host string) bool {
	return isIP(host) || len(host) <= 253 && hostName.MatchString(host)
}

func isIP(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// dialAddress checks an address to connect to: a host name or IP address, and a port.
func dialAddress(value any) *problem {
	return address(`host:port, such as "collector.example:4317" or "[::1]:4317"`,
		func(s string) bool {
			host, _, ok := splitAddress(s)
			return ok && isHost(host)
		})(value)
}

// eachAddress checks each address of an upstream server.
func eachAddress(value any) *problem {
	for _, item := range value.(Addresses) {
		if p := dialAddress(item); p != nil {
			return p
		}
	}
	return nil
}

// listenAddress checks an address that the agent listens on. As in Go, no host means all addresses.
func listenAddress(value any) *problem {
	return address(`IP:port or :port (all addresses), such as "127.0.0.1:15020"`,
		func(s string) bool {
			host, _, ok := splitAddress(s)
			return ok && (host == "" || host == "localhost" || isIP(host))
		})(value)
}

// envoyListenAddress checks an address that Envoy listens on. Envoy accepts no host names.
func envoyListenAddress(value any) *problem {
	return address(`IP:port, such as "127.0.0.1:15090", or "0.0.0.0:15090" for all addresses`,
		func(s string) bool {
			host, _, ok := splitAddress(s)
			return ok && isIP(host)
		})(value)
}

// resolverAddress checks a DNS server: an IP address with an optional port.
func resolverAddress(value any) *problem {
	return address(
		`an IP address, with a port if it is not 53, such as "10.0.0.2" or "10.0.0.2:5353"`,
		func(s string) bool {
			host, _, ok := splitAddress(s)
			return isIP(s) || ok && isIP(host)
		})(value)
}

// grpcTarget checks host:port or host:port/service.
func grpcTarget(value any) *problem {
	return text(`host:port or host:port/service, such as "127.0.0.1:9000/service"`,
		func(s string) bool {
			address, _, _ := strings.Cut(s, "/")
			host, _, ok := splitAddress(address)
			return ok && isHost(host)
		})(value)
}

func ipAddress(value any) *problem {
	return text(`an IP address, such as "10.0.0.5" or "fd00::5"`, isIP)(value)
}

// cidr checks a network, an address, or * for all.
func cidr(value any) *problem {
	return text(`"*" or a network, such as "10.0.0.0/8"`, func(s string) bool {
		_, err := netip.ParsePrefix(s)
		return s == "*" || err == nil || isIP(s)
	})(value)
}

func httpURL(value any) *problem {
	return text(`a URL, such as "http://127.0.0.1:8080/metrics"`, func(s string) bool {
		u, err := url.Parse(s)
		return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != ""
	})(value)
}

// emailAddress checks the address of a service account.
func emailAddress(value any) *problem {
	return text(`NAME@DOMAIN, such as "web@project.iam.gserviceaccount.com"`, func(s string) bool {
		name, domain, ok := strings.Cut(s, "@")
		return ok && hostName.MatchString(name) && hostName.MatchString(domain)
	})(value)
}
