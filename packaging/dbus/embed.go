// Package dbus contains the installed files for D-Bus: interfaces and bus policy. The interfaces
// are the source of truth: agent/bus implements them, and the man page is generated from them.
package dbus

import "embed"

// Interfaces holds interfaces/NAME.xml of each interface, NAME being its name.
//
//go:embed interfaces/*.xml
var Interfaces embed.FS
