// Command backend runs a small HTTP and TCP server behind Envoy; see package backend for its
// responses.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"outrider.org/outrider/scripts/backend"
)

func main() {
	config := backend.Config{}
	flag.StringVar(&config.Name, "name", "backend", "what it calls itself")
	flag.StringVar(&config.HTTP, "http", "127.0.0.1:0",
		"`address` of HTTP/1.1 and HTTP/2 in the clear")
	flag.StringVar(&config.TCP, "tcp", "", "`address` of the TCP echo (default: none)")
	flag.Parse()
	if err := run(config); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(config backend.Config) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server, err := backend.Start(config)
	if err != nil {
		return err
	}
	fmt.Printf("%s listens on %s\n", config.Name, server.HTTPAddress())
	<-ctx.Done()
	server.Close()
	return nil
}
