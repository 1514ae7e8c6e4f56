// Package envoy knows what an Envoy is: its binary and versions, its command line, its admin
// interface, its log lines and what its exits mean. It starts nothing and holds no state of a
// running Envoy.
package envoy
