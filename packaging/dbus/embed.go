// Package dbus is what is installed for D-Bus: the interfaces and the bus's policy. The interfaces
// are the source of truth of what the agent shows on the bus: agent/bus serves what they say, the
// man page is made of them.
package dbus

import "embed"

// Interfaces holds interfaces/NAME.xml of each interface, NAME being its name.
//
//go:embed interfaces/*.xml
var Interfaces embed.FS
