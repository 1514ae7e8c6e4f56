// Outrider-capture owns the nftables rules of an agent; see package capture. Nobody calls it by hand.
package main

import (
	"os"

	"outrider.org/outrider/agent/capture"
)

// version is set when the program is linked (-X main.version=…).
var version = "devel"

func main() { os.Exit(capture.Command(os.Args[1:], version, os.Stdout, os.Stderr)) }
