package epoch

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"outrider.org/outrider/agent/keeper"
)

// adoptedSpec is the part of an adopted epoch's spec that its note contains: bootstrap file and
// command line. It suffices to start the epoch again under its own number, until Apply provides the
// whole spec.
type adoptedSpec struct{ number, lineage int }

// errAdoptedSpec is the error of a start for which the note of an adopted epoch does not suffice.
// With its note, an epoch can only be started again under its own number.
var errAdoptedSpec = errors.New(
	"an earlier agent started the epoch; this agent does not know the epoch's configuration yet")

// foundProcess reads the note of a process in the keeper's list.
func (x *executor) foundProcess(p keeper.Process) foundProcess {
	found := foundProcess{processExited: x.exitOf(p)}
	var n note
	if err := json.Unmarshal(p.Note, &n); err != nil || n.BootstrapPath == "" {
		found.problem = fmt.Errorf("the note that an agent stored in the keeper for the process "+
			"is invalid: %q (%w)", p.Note, err)
		return found
	}
	found.adopted = processOf(n)
	found.adopted.ID, found.adopted.PID = p.ID, p.PID
	if !p.Started.IsZero() {
		found.adopted.Started = p.Started
	}
	makeStartable(found.adopted)
	return found
}

// makeStartable completes the spec of an adopted epoch with its bootstrap file. It leaves the spec
// incomplete if the file was changed: a later attempt with the same number may have overwritten it.
func makeStartable(p *process) {
	content, err := os.ReadFile(p.BootstrapPath)
	if err != nil || p.command.Path == "" {
		return
	}
	if p.sum != sumOf(content) {
		return
	}
	was, command, address := p.launch(), p.command, p.AdminAddress
	p.spec.adopted = &adoptedSpec{number: p.Number, lineage: p.Lineage}
	p.spec.AdminAddress = func(LaunchInput) string { return address }
	p.spec.Bootstrap = func(l LaunchInput) ([]byte, error) {
		if l.Number != was.Number {
			return nil, fmt.Errorf("make the bootstrap of epoch %d: %w", l.Number, errAdoptedSpec)
		}
		return content, nil
	}
	p.spec.Command = func(l LaunchInput) (Command, error) {
		if l.Number != was.Number || l.Lineage != was.Lineage || l.HotRestart != was.HotRestart {
			return Command{}, fmt.Errorf("make the command line of epoch %d in lineage %d: %w",
				l.Number, l.Lineage,
				errAdoptedSpec)
		}
		again := command
		again.Args = withRestartEpoch(command.Args, l.RestartEpoch)
		return again, nil
	}
}

// withRestartEpoch replaces --restart-epoch, the only argument that changes if the epoch is started
// again without a parent.
func withRestartEpoch(args []string, epoch int) []string {
	const flag = "--restart-epoch"
	args = slices.Clone(args)
	for i, arg := range args {
		switch {
		case arg == flag && i+1 < len(args):
			args[i+1] = strconv.Itoa(epoch)
		case strings.HasPrefix(arg, flag+"="):
			args[i] = flag + "=" + strconv.Itoa(epoch)
		}
	}
	return args
}
