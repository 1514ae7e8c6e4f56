// Outrider-keeper is the parent process of an agent's Envoys and survives the agent; see package
// keeper. Users do not run it.
package main

import (
	"os"
	"runtime"

	"outrider.org/outrider/agent/keeper"
)

// version is set by the build (-X main.version=…).
var version = "devel"

// init locks the main goroutine to the main thread, from which every child must be forked.
func init() { runtime.LockOSThread() }

func main() {
	os.Exit(keeper.Main(os.Args[1:], version, os.Stdout, os.Stderr))
}
