package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"outrider.org/outrider/packaging/examples"
)

func (a *app) exampleCommand() *cobra.Command {
	return group("example", "Tested configurations to begin with",
		a.exampleListCommand(), a.exampleShowCommand())
}

func (a *app) exampleListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the examples",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.print(examples.AllExamples(), func() {
				for _, group := range examples.Groups {
					a.writeExamples(group)
				}
			})
		},
	}
}

// nameWidth is the width of the column with the names of examples. It is the same for all groups.
const nameWidth = 16

func (a *app) writeExamples(group examples.Group) {
	fmt.Fprintf(a.out, "%s: %s\n", a.paint(cell{group.Name, bold}), group.Summary)
	for _, example := range group.Examples() {
		fmt.Fprintf(a.out, "  %-*s %s\n", nameWidth, example.Name, example.Summary)
	}
}

func (a *app) exampleShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME [FILE]",
		Short: "Print the files of an example",
		Long: "Show prints the files of an example; the comments in the first one say how to\n" +
			"install and try it. With FILE, such as mesh.d/canary.yaml, it prints that file\n" +
			"alone, as it is.\n\n" +
			"The same files are in /usr/share/doc/outrider/examples.",
		Example: "  outrider example show canary\n" +
			"  outrider example show canary mesh.d/canary.yaml >/etc/outrider/mesh.d/canary.yaml",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: exampleNames,
		RunE: func(_ *cobra.Command, arguments []string) error {
			example, err := examples.FindExample(arguments[0])
			switch {
			case err != nil:
				return usageError{err}
			case len(arguments) == 2:
				return a.printExampleFile(example, arguments[1])
			case a.json:
				return a.printJSON(example)
			}
			for i, file := range example.Files {
				if i > 0 {
					fmt.Fprintln(a.out)
				}
				fmt.Fprintf(a.out, "==> /etc/outrider/%s <==\n%s", file.Path, file.Text)
			}
			return nil
		},
	}
}

func (a *app) printExampleFile(example examples.Example, name string) error {
	for _, file := range example.Files {
		if file.Path == name {
			fmt.Fprint(a.out, file.Text)
			return nil
		}
	}
	return usagef("the example %s has no file %q; run \"outrider example show %s\"",
		example.Name, name, example.Name)
}

// exampleNames completes the names of examples.
func exampleNames(
	_ *cobra.Command, arguments []string, _ string,
) ([]string, cobra.ShellCompDirective) {
	var names []string
	if len(arguments) == 0 {
		for _, example := range examples.AllExamples() {
			names = append(names, example.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
