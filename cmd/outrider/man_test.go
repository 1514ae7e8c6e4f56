package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/packaging/man"
)

// exits are the exit codes of all commands, with their meanings.
var exits = []struct {
	code    int
	meaning string
}{
	{api.ExitDone, "Done."},
	{api.ExitRefused, "The agent said no, or what was asked for went wrong; the reason is on " +
		"standard error."},
	{api.ExitUsage, "Wrong usage."},
	{api.ExitNotRunning, "The agent is not running."},
	{api.ExitNotAuthorised, "Not authorised."},
}

// TestManPages compares the manual pages in packaging/man with those generated from the commands.
func TestManPages(t *testing.T) {
	folder := filepath.Join("..", "..", "packaging", "man")
	root := newApp(os.Stdin, os.Stdout, os.Stderr).root()
	pages := map[string]string{}
	addPages(pages, root)

	files, err := filepath.Glob(filepath.Join(folder, "*.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if pages[filepath.Base(file)] == "" {
			if *update {
				err = os.Remove(file)
			}
			if !*update || err != nil {
				t.Errorf("%s is the page of no command; -update removes it", file)
			}
		}
	}
	for name, want := range pages {
		file := filepath.Join(folder, name)
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Errorf("%v; -update writes it", err)
			continue
		}
		if diff := cmp.Diff(string(got), want); diff != "" {
			t.Errorf("%s is not what the command says (-update writes it): -file +command:\n%s",
				file, diff)
		}
	}
}

func addPages(pages map[string]string, command *cobra.Command) {
	pages[pageName(command)+".1"] = page(command)
	for _, child := range shown(command) {
		addPages(pages, child)
	}
}

// pageName returns the name of a command's page: outrider-config-check for `outrider config check`.
func pageName(command *cobra.Command) string {
	return strings.ReplaceAll(command.CommandPath(), " ", "-")
}

func shown(command *cobra.Command) []*cobra.Command {
	var commands []*cobra.Command
	for _, child := range command.Commands() {
		if child.IsAvailableCommand() && child.Name() != "help" {
			commands = append(commands, child)
		}
	}
	return commands
}

func page(command *cobra.Command) string {
	p := man.New(pageName(command), 1, lowerFirst(command.Short))
	root := command.Root()
	isRoot := command == root

	p.Section("SYNOPSIS")
	p.SynopsisLine(synopsis(command))
	p.Section("DESCRIPTION")
	for paragraph := range strings.SplitSeq(firstOf(command.Long, command.Short+"."), "\n\n") {
		switch {
		// the exit codes have their own section
		case isRoot && strings.HasPrefix(paragraph, "Exit codes:"):
		case strings.HasPrefix(paragraph, "  "):
			p.Example(strings.ReplaceAll("\n"+paragraph, "\n  ", "\n"))
		default:
			p.Text(paragraph)
		}
	}
	if len(command.Aliases) > 0 {
		p.Text("Other names: `" + strings.Join(command.Aliases, "`, `") + "`.")
	}
	if children := shown(command); len(children) > 0 {
		p.Section("COMMANDS")
		for _, group := range append(command.Groups(), &cobra.Group{}) {
			if group.Title != "" {
				p.Subsection(strings.TrimSuffix(group.Title, ":"))
			}
			for _, child := range children {
				if child.GroupID == group.ID {
					p.Term(man.Bold(child.Name()), child.Short+". See `"+pageName(child)+"`(1).")
				}
			}
		}
	}
	p.Section("OPTIONS")
	own := command.LocalFlags()
	flags(p, own)
	p.Term(man.Bold("-h")+", "+man.Bold("--help"), "Say how the command is used.")
	if isRoot {
		p.Term(man.Bold("--version"), "Print the version.")
	} else {
		p.Text("What holds for all commands:")
		flags(p, root.PersistentFlags())
	}
	if command.Example != "" {
		p.Section("EXAMPLES")
		p.Example(strings.ReplaceAll("\n"+command.Example, "\n  ", "\n"))
	}
	p.Section("EXIT STATUS")
	for _, exit := range exits {
		p.Term(man.Bold(fmt.Sprint(exit.code)), exit.meaning)
	}
	if isRoot {
		p.Text("With `--json` an error is a JSON object on standard error:")
		p.Example("{\"error\": \"the agent is stopping\", \"exit_code\": 1}")
	}
	see := []string{"outriderd(8)", "outrider.toml(5)"}
	if isRoot {
		p.Section("FILES")
		p.Term(man.Italic("/etc/outrider"), "The configuration, see `outrider.toml`(5) and "+
			"`outrider-mesh`(5).")
		p.Term(man.Italic("/usr/share/doc/outrider/examples"), "Tested configurations, see "+
			"`outrider-example`(1).")
		p.Term(man.Italic("/run/outrider/outrider.sock"),
			"The agent's private socket; that of an instance is in `/run/outrider/`NAME.")
		p.Section("ENVIRONMENT")
		p.Term(man.Bold("NO_COLOR"), "Anything but nothing: no colour on a terminal either.")
		see = append(see, "outrider-mesh(5)", "outrider-example(1)", "org.outrider.Agent1(5)")
	} else {
		parent := []string{pageName(command.Parent()) + "(1)"}
		if command.Parent() != root {
			parent = append(parent, "outrider(1)")
		}
		see = append(parent, see...)
	}
	p.SeeAlso(see...)
	return p.String()
}

// synopsis returns the usage of a command in roff.
func synopsis(command *cobra.Command) string {
	usage := man.Bold(command.CommandPath()) + " [" + man.Italic("option") + " ...]"
	if len(shown(command)) > 0 {
		return usage + " " + man.Italic("command")
	}
	if arguments := strings.TrimPrefix(command.Use, command.Name()); arguments != "" {
		usage += " " + man.Escape(strings.TrimSpace(arguments))
	}
	return usage
}

func flags(p *man.Page, flags *pflag.FlagSet) {
	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Hidden || flag.Name == "help" || flag.Name == "version" {
			return
		}
		argument, usage := pflag.UnquoteUsage(flag)
		term := man.Bold("--" + flag.Name)
		if flag.Shorthand != "" {
			term = man.Bold("-"+flag.Shorthand) + ", " + term
		}
		if argument != "" {
			term += " " + man.Italic(argument)
		}
		if flag.DefValue != "" && flag.DefValue != "false" && !strings.Contains(usage, "(default") {
			usage += " (default " + flag.DefValue + ")"
		}
		p.Term(term, upperFirst(usage)+".")
	})
}

func firstOf(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}

func upperFirst(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// lowerFirst returns s with a small first letter, unless the first two letters are capitals.
func lowerFirst(s string) string {
	if len(s) > 1 && s[1] >= 'A' && s[1] <= 'Z' {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}
