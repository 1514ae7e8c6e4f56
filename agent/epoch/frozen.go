package epoch

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// frozen is what is known of an adopted epoch's spec: the file and the command line it was started with. That is enough to
// start it again under its own number, until Apply brings the functions that made them.
type frozen struct {
	number  int
	lineage int
	tried   bool // since it was live, and did not get live again
}

// tried tells whether the spec is an earlier agent's and has not come back when it was started again: its configuration may be the trouble, and
// what this agent asks for the cure.
func (s *Spec) tried() bool { return s.frozen != nil && s.frozen.tried }

// errFrozen is why an adopted epoch cannot be started otherwise than it was.
var errFrozen = errors.New("it was started by an agent before this one, and its configuration is not known yet")

// thaw makes the spec of an adopted epoch one that can be started again, if its file is still there: another attempt of the same number
// may have written its own.
func thaw(p *process) {
	content, err := os.ReadFile(p.BootstrapPath)
	if err != nil || p.command.Path == "" {
		return
	}
	sum := sumOf(content)
	if p.sum != "" && p.sum != sum {
		return
	}
	p.sum = sum // an older agent's note has none
	was, command, address := p.launch(), p.command, p.AdminAddress
	p.spec.frozen = &frozen{number: p.Number, lineage: p.Lineage}
	p.spec.AdminAddress = func(Launch) string { return address }
	p.spec.Bootstrap = func(l Launch) ([]byte, error) {
		if l.Number != was.Number {
			return nil, fmt.Errorf("as epoch %d: %w", l.Number, errFrozen)
		}
		return content, nil
	}
	p.spec.Command = func(l Launch) (Command, error) {
		if l.Number != was.Number || l.Lineage != was.Lineage || l.HotRestart != was.HotRestart {
			return Command{}, fmt.Errorf("as epoch %d in lineage %d: %w", l.Number, l.Lineage, errFrozen)
		}
		again := command
		again.Args = withRestartEpoch(command.Args, l.RestartEpoch)
		return again, nil
	}
}

// withRestartEpoch replaces the one part of a command line that is another one when nobody is left to take over from.
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
