package bus

import (
	"fmt"
	"strings"

	"github.com/godbus/dbus/v5"
)

// The agent's names on the bus.
const (
	wellKnownName     = "org.outrider.Agent1"
	managerInterface  = "org.outrider.Agent1.Manager"
	epochInterface    = "org.outrider.Agent1.Epoch"
	secretInterface   = "org.outrider.Agent1.Secret"
	managerPath       = dbus.ObjectPath("/org/outrider/Agent1")
	epochFolder       = managerPath + "/epoch/"
	secretFolder      = managerPath + "/secret/"
	propertiesName    = "org.freedesktop.DBus.Properties"
	introspectName    = "org.freedesktop.DBus.Introspectable"
	peerName          = "org.freedesktop.DBus.Peer"
	objectManagerName = "org.freedesktop.DBus.ObjectManager"
)

// WellKnownName returns the D-Bus name of an instance; "" is the agent without an instance name.
func WellKnownName(instance string) string {
	if instance == "" {
		return wellKnownName
	}
	return wellKnownName + ".Instance._" + escapeLabel(instance)
}

// epochPath returns the object path of an epoch.
func epochPath(number int) dbus.ObjectPath {
	return epochFolder + dbus.ObjectPath(fmt.Sprint(number))
}

func secretPath(name string) dbus.ObjectPath {
	return secretFolder + dbus.ObjectPath(escapeLabel(name))
}

// escapeLabel escapes like sd_bus_path_encode: every byte except ASCII letters and digits, and a
// leading digit, becomes _ and two hexadecimal digits. An empty label becomes _.
func escapeLabel(label string) string {
	if label == "" {
		return "_"
	}
	var escaped strings.Builder
	for i := range len(label) {
		switch c := label[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', i > 0 && '0' <= c && c <= '9':
			escaped.WriteByte(c)
		default:
			fmt.Fprintf(&escaped, "_%02x", c)
		}
	}
	return escaped.String()
}
