package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

// TestCompletion_Shells loads the completion scripts into each shell, and completes words. The
// shells must be installed (scripts/setup test).
func TestCompletion_Shells(t *testing.T) {
	folder := t.TempDir()
	programs := filepath.Dir(parts.BuildProgram(t, "outrider"))
	for _, c := range []struct {
		shell, file string
		syntax      []string
		// script that prints the completions of "outrider rel" and of "outrider completion "
		complete string
	}{
		// Calls the completion function with the variables that bash-completion prepares.
		{"bash", "outrider", []string{"-n"}, `
_init_completion() { cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=("${COMP_WORDS[@]}") cword=$COMP_CWORD; }
__ltrim_colon_completions() { :; }
_get_comp_words_by_ref() { _init_completion; }
. ./outrider
complete -p outrider >/dev/null
COMP_TYPE=9 COMP_WORDS=(outrider rel) COMP_CWORD=1 COMP_LINE='outrider rel' COMP_POINT=12
__start_outrider outrider rel outrider
printf '%s\n' "${COMPREPLY[@]}"
COMP_WORDS=(outrider completion '') COMP_CWORD=2 COMP_LINE='outrider completion ' COMP_POINT=20
__start_outrider outrider '' completion
printf '%s\n' "${COMPREPLY[@]}"`},
		// Calls the completion function without the package bash-completion.
		{"bash", "outrider", []string{"-n"}, `
. ./outrider
COMP_TYPE=9 COMP_WORDS=(outrider rel) COMP_CWORD=1 COMP_LINE='outrider rel' COMP_POINT=12
__start_outrider outrider rel outrider
printf '%s\n' "${COMPREPLY[@]}"
COMP_WORDS=(outrider log-level agent = w) COMP_CWORD=4 COMP_LINE='outrider log-level agent=w' COMP_POINT=26
__start_outrider outrider w =
[ "${COMPREPLY[*]}" = warn ] || echo "status of log-level: ${COMPREPLY[*]}"
COMP_WORDS=(outrider completion '') COMP_CWORD=2 COMP_LINE='outrider completion ' COMP_POINT=20
__start_outrider outrider '' completion
printf '%s\n' "${COMPREPLY[@]}"`},
		// Prints the candidates that the function passes to zsh, because zsh itself completes only
		// on a terminal.
		{"zsh", "_outrider", []string{"-f", "-n"}, `
compdef() { :; }
_describe() { local -a found; found=("${(@P)2}"); print -l -- $found; }
words=(outrider rel) CURRENT=2
. ./_outrider
_outrider
words=(outrider completion '') CURRENT=3
_outrider`},
		{"fish", "outrider.fish", []string{"--no-execute"}, `
source ./outrider.fish
complete -C 'outrider rel'
complete -C 'outrider completion '`},
	} {
		t.Run(c.shell, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), filepath.Join(programs, "outrider"),
				"completion", c.shell).Output()
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(folder, c.file)
			if err := os.WriteFile(path, out, 0o644); err != nil {
				t.Fatal(err)
			}
			run := func(arguments ...string) string {
				t.Helper()
				command := exec.CommandContext(t.Context(), c.shell, arguments...)
				command.Dir, command.Env = folder, []string{"PATH=" + programs + ":" +
					os.Getenv("PATH"), "HOME=" + folder}
				out, err := command.CombinedOutput()
				if err != nil {
					t.Fatalf("%s %q: %v: %s", c.shell, arguments, err, out)
				}
				return string(out)
			}
			if said := run(append(c.syntax, path)...); said != "" {
				t.Errorf("%s: %s", path, said)
			}
			completed := run("-c", c.complete)
			if strings.Contains(completed, "not found") {
				t.Errorf("it needs what is not there: %s", completed)
			}
			for _, want := range []string{"reload", "bash", "zsh", "fish"} {
				if !strings.Contains(completed, want) {
					t.Errorf("%s is not completed: %s", want, completed)
				}
			}
			if strings.Contains(completed, "status") {
				t.Errorf("what does not begin with the word is completed: %s", completed)
			}
		})
	}
}
