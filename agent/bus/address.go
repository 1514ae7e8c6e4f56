package bus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/godbus/dbus/v5"
)

// SystemAddress is the default address of the system bus.
const SystemAddress = "unix:path=/run/dbus/system_bus_socket"

// dial connects to the first reachable address of a semicolon-separated list (as in
// DBUS_SYSTEM_BUS_ADDRESS). It supports Unix sockets only; system buses use no others.
func dial(ctx context.Context, addresses string) (net.Conn, error) {
	var failed []error
	for address := range strings.SplitSeq(addresses, ";") {
		socket, err := socketOf(address)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		connection, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			return connection, nil
		}
		failed = append(failed, fmt.Errorf("connect to D-Bus: %w", err))
	}
	return nil, errors.Join(failed...)
}

// socketOf returns the Unix socket of one address; a leading @ marks an abstract socket.
func socketOf(address string) (string, error) {
	keys, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		return "", fmt.Errorf("D-Bus address %q: unsupported transport; only unix: is supported",
			address)
	}
	for pair := range strings.SplitSeq(keys, ",") {
		key, value, _ := strings.Cut(pair, "=")
		value, err := dbus.UnescapeBusAddressValue(value)
		if err != nil {
			return "", fmt.Errorf("D-Bus address %q is invalid: %w", address, err)
		}
		switch {
		case key == "path" && value != "":
			return value, nil
		case key == "abstract" && value != "":
			return "@" + value, nil
		}
	}
	return "",
		fmt.Errorf("D-Bus address %q has neither path= nor abstract=", address)
}
