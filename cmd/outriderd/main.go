// Command outriderd is the agent. It is implemented in package agent.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"outrider.org/outrider/agent"
	"outrider.org/outrider/agent/config"
)

// version is set by the build.
var version = "development"

func main() {
	os.Exit(run())
}

func run() int {
	flags := flag.NewFlagSet("outriderd", flag.ContinueOnError)
	configFile := flags.String("config", "",
		"the configuration `file` (default /etc/outrider/outrider.toml); drop-ins come from "+
			"conf.d beside it")
	instance := flags.String("instance", "",
		"the `name` of an instance: its configuration is /etc/outrider/NAME.toml")
	check := flags.Bool("check", false, "check the configuration, say what is wrong, and exit")
	early := flags.Bool("early", false, "with [capture] fail or fail_inbound = \"closed\", refuse "+
		"what Envoy does not capture yet, and exit")
	showVersion := flags.Bool("version", false, "print the version and exit")
	if err := flags.Parse(os.Args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return agent.ExitOK
		}
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr,
			"outriderd: unexpected argument %q: everything beside -config, -instance, -check, "+
				"-early and -version is configuration\n", flags.Arg(0))
		return 2
	}
	if *showVersion {
		fmt.Println("outriderd", version)
		return agent.ExitOK
	}
	if *configFile != "" && *instance != "" {
		fmt.Fprintln(os.Stderr,
			"outriderd: -config and -instance exclude each other: an instance's file is "+
				"/etc/outrider/NAME.toml")
		return 2
	}

	options := agent.Options{
		Config: config.Options{Path: *configFile, Instance: *instance, Environment: os.Getenv,
			RunsInUnit: os.Getenv("INVOCATION_ID") != "" && os.Getenv("NOTIFY_SOCKET") != ""},
		Version: version,
		Output:  os.Stderr,
	}
	var err error
	switch {
	case *check:
		err = agent.CheckConfig(context.Background(), options, os.Stdout)
	case *early:
		err = agent.RejectConnectionsUntilEnvoyServes(context.Background(), options)
	default:
		err = agent.Run(context.Background(), options)
	}
	if err == nil {
		return agent.ExitOK
	}
	var exit *agent.ExitError
	if errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, "outriderd:", exit.Err)
		return exit.Code
	}
	fmt.Fprintln(os.Stderr, "outriderd:", err)
	return agent.ExitInternal
}
