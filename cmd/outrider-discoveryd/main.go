// Command outrider-discoveryd is a discovery server for a fleet. It uses the same code as the
// discovery server embedded in outriderd. It reads configuration from files, Kubernetes, Consul or
// another xDS server, or receives it over a write API (memory).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/ca"
)

// version is the program's version, which the build sets.
var version = "development"

// Exit codes, equal to those of outriderd.
const (
	exitOK       = 0
	exitProblems = 1
	exitUsage    = 2
	exitInternal = 70
	exitConfig   = 78
)

func main() { os.Exit(run(os.Args[1:])) }

func run(arguments []string) int {
	flags := flag.NewFlagSet("outrider-discoveryd", flag.ContinueOnError)
	file := flags.String("config", "", "the configuration `file` (default "+
		"/etc/outrider/discoveryd.toml); drop-ins come from discoveryd.d beside it")
	check := flags.Bool("check", false, "check the configuration, say what is wrong, and exit")
	showVersion := flags.Bool("version", false, "print the version and exit")
	if err := flags.Parse(arguments); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return exitOK
		}
		return exitUsage
	}
	if *showVersion {
		fmt.Println("outrider-discoveryd", version)
		return exitOK
	}
	options := config.Options{Path: *file, Environment: os.Getenv, CheckOnly: *check}
	switch {
	case flags.Arg(0) == "check" && flags.NArg() <= 2:
		return exitCode(checkSources(context.Background(), options, flags.Arg(1), os.Stdout))
	case flags.Arg(0) == "ca" && flags.Arg(1) == "init" && flags.NArg() >= 3:
		if err := ca.Init(flags.Arg(2), flags.Args()[3:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "outrider-discoveryd:", err)
			return exitProblems
		}
		return exitOK
	case flags.Arg(0) == "reload" && flags.NArg() == 1:
		return exitCode(requestReload(context.Background(),
			controlSocket(os.Getenv, "/run/outrider-discoveryd")))
	case flags.Arg(0) == "token":
		return tokenCommand(flags.Args()[1:])
	case flags.NArg() > 0:
		fmt.Fprintf(os.Stderr, "outrider-discoveryd: unexpected argument %q; the commands are "+
			"check [SOURCE], reload, token, and ca init DIR [NAME…]\n", flags.Arg(0))
		return exitUsage
	case *check:
		_, err := config.LoadDiscoveryd(options)
		return exitCode(err)
	}
	return exitCode(serve(context.Background(), options))
}

// exitCode writes an error to standard error, and returns the exit code for it.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if errors.Is(err, errProblems) {
		return exitProblems
	}
	if invalid, ok := errors.AsType[config.Errors](err); ok {
		for _, line := range config.ErrorLines(invalid) {
			fmt.Fprintln(os.Stderr, line)
		}
		return exitConfig
	}
	fmt.Fprintln(os.Stderr, "outrider-discoveryd:", err)
	return exitInternal
}
