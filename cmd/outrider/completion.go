package main

import "github.com/spf13/cobra"

func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:       "completion {bash|zsh|fish}",
		Short:     "Print the completions of a shell",
		Example:   "  source <(outrider completion bash)",
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		RunE: func(command *cobra.Command, arguments []string) error {
			root := command.Root()
			switch arguments[0] {
			case "bash":
				return root.GenBashCompletionV2(a.out, true)
			case "zsh":
				return root.GenZshCompletion(a.out)
			default:
				return root.GenFishCompletion(a.out, true)
			}
		},
	}
}
