package main

import (
	"bytes"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:       "completion {bash|zsh|fish}",
		Short:     "Print the completion script for a shell",
		Example:   "  source <(outrider completion bash)",
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		RunE: func(command *cobra.Command, arguments []string) error {
			root := command.Root()
			switch arguments[0] {
			case "bash":
				var script bytes.Buffer
				if err := root.GenBashCompletionV2(&script, true); err != nil {
					return err
				}
				_, err := a.out.Write(withoutPackage(script.Bytes()))
				return err
			case "zsh":
				return root.GenZshCompletion(a.out)
			default:
				return root.GenFishCompletion(a.out, true)
			}
		},
	}
}

// withoutPackage changes the completion script so that it also works without the package
// bash-completion. Words are then separated at spaces only.
func withoutPackage(script []byte) []byte {
	const needsPackage = "    _get_comp_words_by_ref \"$@\" cur prev words cword\n"
	const split = `    if declare -F _get_comp_words_by_ref >/dev/null 2>&1; then
        _get_comp_words_by_ref "$@" cur prev words cword
        return
    fi
    local line=${COMP_LINE:0:COMP_POINT}
    read -r -a words <<<"$line"
    if [[ $line == *[[:space:]] ]]; then
        words+=("")
    fi
    cword=$((${#words[@]} - 1))
    cur=${words[cword]}
    prev=${words[cword - 1]}
`
	return []byte(strings.Replace(string(script), needsPackage, split, 1))
}
