package bus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/godbus/dbus/v5"
)

// SystemAddress is where the system bus listens if nothing else is said.
const SystemAddress = "unix:path=/run/dbus/system_bus_socket"

// dial connects to the first of a list of addresses (as in DBUS_SYSTEM_BUS_ADDRESS, separated by semicolons) that answers.
// Only Unix sockets are known: a system bus has no other.
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
		failed = append(failed, fmt.Errorf("connect to the bus: %w", err))
	}
	return nil, errors.Join(failed...)
}

// socketOf is the socket of one address; a leading @ is one without a file.
func socketOf(address string) (string, error) {
	keys, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		return "", fmt.Errorf("the bus's address %q cannot be used: only unix: is known", address)
	}
	for pair := range strings.SplitSeq(keys, ",") {
		key, value, _ := strings.Cut(pair, "=")
		value, err := dbus.UnescapeBusAddressValue(value)
		if err != nil {
			return "", fmt.Errorf("the bus's address %q cannot be read: %w", address, err)
		}
		switch {
		case key == "path" && value != "":
			return value, nil
		case key == "abstract" && value != "":
			return "@" + value, nil
		}
	}
	return "", fmt.Errorf("the bus's address %q names neither a path nor an abstract socket", address)
}
