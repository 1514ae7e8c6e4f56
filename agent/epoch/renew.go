package epoch

import (
	"context"
	"fmt"
	"slices"
)

// Renew hands in the spec of the configuration that is in force now, though no epoch had to be started for it: one of equal hash that is
// older is never used again, as it may differ in what makes no other Envoy (log levels in the command line, LiveTimeout). It returns
// whether the live epoch's command line is another one, so that it has to be told; once, as the note says from then on that it was.
func (s *Supervisor) Renew(ctx context.Context, spec *Spec) (differs bool, err error) {
	called := s.call(ctx, func() { differs, err = s.renew(spec) })
	if called != nil {
		return false, called
	}
	return differs, err
}

func (s *Supervisor) renew(spec *Spec) (bool, error) {
	if s.good != nil && s.good.Hash == spec.Hash {
		s.good = spec
	}
	if s.wanted != nil && s.wanted.Hash == spec.Hash {
		s.wanted = spec
	}
	live := s.live()
	if live == nil || live.Hash != spec.Hash {
		return false, nil
	}
	live.spec, s.good = spec, spec
	command, err := spec.Command(live.launch())
	if err != nil {
		return false, fmt.Errorf("build the command line of epoch %d: %w", live.Number, err)
	}
	if slices.Equal(command.Args, live.command.Args) {
		return false, nil
	}
	live.command = command
	s.annotate(live)
	return true, nil
}
