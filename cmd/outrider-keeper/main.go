// Outrider-keeper owns Envoy for whichever agent is connected; see package keeper. It is internal.
package main

import (
	"os"
	"runtime"

	"outrider.org/outrider/agent/keeper"
)

// version is set when the program is linked (-X main.version=…).
var version = "devel"

// The main goroutine stays on the main thread, where every fork has to happen.
func init() { runtime.LockOSThread() }

func main() {
	os.Exit(keeper.Main(os.Args[1:], version, os.Stdout, os.Stderr))
}
