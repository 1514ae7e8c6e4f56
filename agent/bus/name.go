package bus

import (
	"fmt"
	"strings"

	"github.com/godbus/dbus/v5"
)

// The names of the agent on the bus.
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

// Name is the bus name of an instance; "" is the agent that is none.
func Name(instance string) string {
	if instance == "" {
		return wellKnownName
	}
	return wellKnownName + ".Instance._" + escapeLabel(instance)
}

// epochPath is the object of an epoch.
func epochPath(number int) dbus.ObjectPath {
	return epochFolder + dbus.ObjectPath(fmt.Sprint(number))
}

func secretPath(name string) dbus.ObjectPath {
	return secretFolder + dbus.ObjectPath(escapeLabel(name))
}

// escapeLabel escapes as systemd does (sd_bus_path_encode): everything but ASCII letters and digits, and a digit that comes
// first, becomes _ and two hexadecimal digits; nothing at all becomes _.
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
