package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/cmd/outrider/envoys"
)

// app is one run of the command line.
type app struct {
	in       io.Reader // reads answers to questions; nil: standard input is no terminal
	out, err io.Writer
	now      func() time.Time
	colour   bool // standard output is a terminal with colour
	terminal bool // standard error is a terminal, on which progress is shown
	width    int  // width of standard output in characters; 0: no terminal
	paths    paths
	maker    blueprint.Builder // makes a configuration's blueprint (bootstrap and command line)
	unit     func(ctx context.Context, unit string) unitState
	// indexTime limits a request to the Python package index, from which Envoy's versions are
	// listed.
	indexTime time.Duration

	instance string
	socket   string
	json     bool
	wide     bool // -o wide: print all columns of tables
	cuts     bool // the command has --output: its table may be truncated
	started  bool // the command's own code has begun: later errors are no usage errors

	unchecked atomic.Bool // `outrider mesh check` could not check read permissions
}

// paths are the folders of an installation.
type paths struct {
	configuration string // /etc/outrider
	runtime       string // /run/outrider
	keeper        string // /run/outrider-envoy
	sharedMemory  string // /dev/shm
	processes     string // /proc
	envoys        string // /usr/lib/outrider
	capture       string // /run/outrider-capture
	state         string // /var/lib/outrider
	hosts         string // /etc/hosts
}

func newApp(in, out, err *os.File) *app {
	a := &app{
		out: onTerminal(out), err: onTerminal(err), now: time.Now, maker: blueprint.BuilderForThisHost(),
		unit: querySystemd, indexTime: envoys.IndexTimeout,
		colour:   isTerminal(out) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
		terminal: isTerminal(err), width: columns(out),
		paths: paths{configuration: "/etc/outrider", runtime: "/run/outrider",
			keeper:       "/run/outrider-envoy",
			sharedMemory: "/dev/shm", processes: "/proc", envoys: filepath.Dir(envoy.SelectedPath),
			capture: "/run/outrider-capture", state: "/var/lib/outrider", hosts: "/etc/hosts"},
	}
	if isTerminal(in) && a.terminal {
		a.in = in
	}
	return a
}

// usageError is an error in the invocation (exit code 2).
type usageError struct{ error }

func usagef(format string, arguments ...any) error {
	return usageError{fmt.Errorf(format, arguments...)}
}

// silentError is a failure that was already reported.
type silentError struct{ code int }

func (e silentError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// run executes the command line and returns the exit code.
func (a *app) run(ctx context.Context, arguments []string) int {
	root := a.root()
	root.SetArgs(arguments)
	root.SetOut(a.out)
	root.SetErr(a.err)
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return api.ExitDone
	}
	if silent, ok := errors.AsType[silentError](err); ok {
		return silent.code
	}
	if a.json {
		return a.printErrorJSON(err)
	}
	fmt.Fprintln(a.err, "outrider:", err)
	if _, ok := errors.AsType[usageError](err); ok || !a.started {
		fmt.Fprintf(a.err, "See \"%s --help\".\n", command.CommandPath())
		return api.ExitUsage
	}
	if _, ok := errors.AsType[*api.NotRunningError](err); ok && a.socket == "" {
		a.printWhyNotRunning(ctx)
	}
	return api.ExitCode(err)
}

// printErrorJSON prints an error as a JSON object to standard error, and returns the exit code.
func (a *app) printErrorJSON(err error) int {
	code := api.ExitCode(err)
	if _, ok := errors.AsType[usageError](err); ok || !a.started {
		code = api.ExitUsage
	}
	_ = json.NewEncoder(a.err).Encode(struct {
		Error string `json:"error"`
		Code  int    `json:"exit_code"`
	}{err.Error(), code})
	return code
}

// root returns the tree of commands, from which man pages and completions are generated.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "outrider",
		Short: "Inspect and control the Outrider agent and its Envoy",
		Long: "Outrider runs Envoy under systemd: as a reverse proxy, a gateway, or the sidecar of\n" +
			"a service mesh. As root, from an installed package to the first answer:\n\n" +
			firstSteps + "\n\n" +
			"What Envoy serves is in /etc/outrider/mesh.d, see outrider-mesh(5). More to begin\n" +
			"with: \"outrider example list\" and README.Debian (on other systems README) in\n" +
			"/usr/share/doc/outrider.\n\n" +
			"outrider talks to the agent (outriderd) over its private socket. Every user may\n" +
			"read the state; root, the agent's own user and members of group outrider may\n" +
			"also read the configuration and make changes.\n\n" +
			"Exit codes: 0 success, 1 the agent refused (the reason is on standard error), 2\n" +
			"usage error, 3 the agent is not running, 4 not authorised. With --json an error is\n" +
			"an object on standard error: {\"error\": \"REASON\", \"exit_code\": 1}.",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          needsCommand,

		SuggestionsMinimumDistance: 2,
		Args:                       cobra.ArbitraryArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if a.instance != "" && a.socket == "" {
				if err := config.CheckInstanceName(a.instance); err != nil {
					return err
				}
			}
			a.started = true
			return nil
		},
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	flags := root.PersistentFlags()
	flags.StringVarP(&a.instance, "instance", "i", "",
		"the `name` of the instance, where a host has several agents")
	_ = root.RegisterFlagCompletionFunc("instance", a.instances)
	flags.StringVar(&a.socket, "socket", "",
		"the agent's private socket (default "+filepath.Join(a.paths.runtime,
			"[NAME/]"+api.SocketName)+")")
	flags.BoolVar(&a.json, "json", false, "print JSON")
	a.addCommands(root)
	return root
}

// firstSteps are the commands that lead from an installed package to the first response through
// Envoy.
const firstSteps = `  outrider envoy install
  cp -r /usr/share/doc/outrider/examples/hello/* /etc/outrider/
  systemctl enable --now outrider
  curl -i http://127.0.0.1:8080/`

// addCommands adds all commands in the groups of the help.
func (a *app) addCommands(root *cobra.Command) {
	for _, group := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"begin", "Getting started:", []*cobra.Command{a.envoyCommand(), a.exampleCommand(),
			a.joinCommand(), a.leaveCommand(), a.importCommand()}},
		{"daily", "Every day:", []*cobra.Command{a.statusCommand(), a.meshCommand(),
			a.configCommand(), a.reloadCommand(), a.certsCommand(), a.drainCommand(),
			a.undrainCommand()}},
		{"look", "Looking into it:", []*cobra.Command{a.proxyCommand(), a.proxyStatusAlias(),
			a.analyzeCommand(), a.epochsCommand(), a.eventsCommand(), a.logLevelCommand(),
			a.captureCommand(), a.bugReportCommand()}},
		{"scripts", "In scripts and units:", []*cobra.Command{a.waitCommand(),
			a.cleanupCommand(), a.completionCommand(), a.versionCommand()}},
	} {
		root.AddGroup(&cobra.Group{ID: group.id, Title: group.title})
		for _, command := range group.commands {
			command.GroupID = group.id
			root.AddCommand(command)
		}
	}
	root.SetHelpCommandGroupID("scripts")
}

// needsCommand is the RunE of a command that has only subcommands.
func needsCommand(command *cobra.Command, arguments []string) error {
	if len(arguments) > 0 {
		if near := command.SuggestionsFor(arguments[0]); len(near) > 0 {
			return usagef("unknown command %q for %s; did you mean %q?", arguments[0],
				command.CommandPath(), near[0])
		}
		return usagef("unknown command %q for %s", arguments[0], command.CommandPath())
	}
	_ = command.Help()
	return silentError{api.ExitUsage}
}

// group returns a command that has only subcommands.
func group(use, short string, children ...*cobra.Command) *cobra.Command {
	command := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: needsCommand,
		SuggestionsMinimumDistance: 2}
	command.AddCommand(children...)
	return command
}

// runtimeDir returns the runtime folder of the agent instance.
func (a *app) runtimeDir() string { return filepath.Join(a.paths.runtime, a.instance) }

// asking returns a RunE that calls do with a client of the agent.
func (a *app) asking(
	do func(ctx context.Context, client *api.Client, arguments []string) error,
) func(*cobra.Command, []string) error {
	return func(command *cobra.Command, arguments []string) error {
		client := a.client()
		defer client.Close()
		return do(command.Context(), client, arguments)
	}
}

// client returns a client of the agent that --socket or --instance selects.
func (a *app) client() *api.Client {
	socket := a.socket
	if socket == "" {
		socket = filepath.Join(a.runtimeDir(), api.SocketName)
	}
	return api.NewClient(socket)
}
