// Command outrider is the command line interface to an agent, for people and scripts. It connects
// to the agent's private Unix socket.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the build.
var version = "development"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the default action of a second signal ends the program at once
	code := newApp(os.Stdin, os.Stdout, os.Stderr).run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}
