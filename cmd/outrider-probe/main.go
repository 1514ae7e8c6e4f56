// Outrider-probe runs one command of [health] exec for an agent, in outrider-probe@.service; see
// package execprobe. Users do not run it.
package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"strconv"

	"outrider.org/outrider/agent/probe/execprobe"
)

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "outrider-probe:", err)
		os.Exit(1)
	}
}

// serve serves the agent's connection, which systemd passes as standard input.
func serve() error {
	agent, err := user.Lookup("outrider")
	if err != nil {
		return err
	}
	id, err := strconv.Atoi(agent.Uid)
	if err != nil {
		return err
	}
	connection, err := net.FileConn(os.Stdin)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	unix, ok := connection.(*net.UnixConn)
	if !ok {
		return errors.New("standard input is not a Unix socket")
	}
	return execprobe.Serve(unix, id)
}
