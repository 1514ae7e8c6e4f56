// Outrider-capture owns the nftables rules of an agent; see package capture. With the argument
// "resolved" it is the helper that routes domains to the agent's DNS proxy; see package resolved.
// Users do not run it.
package main

import (
	"fmt"
	"net"
	"os"
	"slices"

	"outrider.org/outrider/agent/capture"
	"outrider.org/outrider/agent/dns/resolved"
)

// version is set by the build (-X main.version=…).
var version = "devel"

func main() {
	if slices.Equal(os.Args[1:], []string{"resolved"}) {
		if err := serveResolved(); err != nil {
			fmt.Fprintln(os.Stderr, "outrider-capture:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(capture.Main(os.Args[1:], version, os.Stdout, os.Stderr))
}

// serveResolved serves the agent's connection, which systemd passes as standard input.
func serveResolved() error {
	connection, err := net.FileConn(os.Stdin)
	if err != nil {
		return fmt.Errorf("standard input is not a socket: %w", err)
	}
	return resolved.ServeHelper(connection)
}
