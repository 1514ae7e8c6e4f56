// Package envoy models the Envoy program: its binary and versions, command line, admin interface,
// log format and exits. It starts no long-running process and holds no state of a running Envoy.
package envoy
