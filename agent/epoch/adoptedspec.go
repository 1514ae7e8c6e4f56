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

// adoptedSpec is the known part of the spec of an adopted epoch: the file and the command line it
// was started with. That is enough to start it again under its own number, until Apply provides the
// functions that made them.
type adoptedSpec struct{ number, lineage int }

// errAdoptedSpec is why an adopted epoch cannot be started otherwise than it was.
var errAdoptedSpec = errors.New(
	"it was started by an agent before this one, and its configuration is not known yet")

// foundProcess reads the note of a process that the keeper has.
func (x *executor) foundProcess(p keeper.Process) foundProcess {
	found := foundProcess{processExited: x.exitOf(p)}
	var n note
	if err := json.Unmarshal(p.Note, &n); err != nil || n.BootstrapPath == "" {
		found.problem = fmt.Errorf("it has no note of an agent: %q (%w)", p.Note, err)
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

// makeStartable makes the spec of an adopted epoch one that can be started again, if its file is
// still there: another attempt of the same number may have written its own.
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
	p.spec.AdminAddress = func(Launch) string { return address }
	p.spec.Bootstrap = func(l Launch) ([]byte, error) {
		if l.Number != was.Number {
			return nil, fmt.Errorf("as epoch %d: %w", l.Number, errAdoptedSpec)
		}
		return content, nil
	}
	p.spec.Command = func(l Launch) (Command, error) {
		if l.Number != was.Number || l.Lineage != was.Lineage || l.HotRestart != was.HotRestart {
			return Command{}, fmt.Errorf("as epoch %d in lineage %d: %w", l.Number, l.Lineage,
				errAdoptedSpec)
		}
		again := command
		again.Args = withRestartEpoch(command.Args, l.RestartEpoch)
		return again, nil
	}
}

// withRestartEpoch replaces the restart epoch, the only part of a command line that changes when
// nobody is left to take over from.
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
