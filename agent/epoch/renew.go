package epoch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// Renew hands in the spec of the configuration that is in force now, though no epoch had to be started for it: one of equal hash that is
// older is never used again, as it may differ in what makes no other Envoy (log levels in the command line, LiveTimeout). It returns
// whether the live epoch's command line is another one, so that it has to be told, until Told.
func (s *Supervisor) Renew(ctx context.Context, spec *Spec) (differs bool, err error) {
	called := s.call(ctx, func() { differs, err = s.renew(spec) })
	return differs, cmp.Or(called, err)
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
	s.respecify(live, spec)
	command, err := spec.Command(live.launch())
	if err != nil {
		return false, fmt.Errorf("build the command line of epoch %d: %w", live.Number, err)
	}
	return !slices.Equal(command.Args, live.command.Args), nil
}

// respecify makes the live epoch one of a newer spec of equal hash.
func (s *Supervisor) respecify(live *process, spec *Spec) {
	live.spec, s.good = spec, spec
	if live.Namespace != spec.Namespace { // an older agent's note has none
		live.Namespace = spec.Namespace
		s.annotate(live)
	}
}

// Told hands in that an epoch was told what is another in the command line of the given spec: the note says so, for the next agent.
func (s *Supervisor) Told(ctx context.Context, id string, spec *Spec) (err error) {
	called := s.call(ctx, func() { err = s.told(id, spec) })
	return cmp.Or(called, err)
}

func (s *Supervisor) told(id string, spec *Spec) error {
	p := s.find(id)
	if p == nil || p.Hash != spec.Hash {
		return nil // it has ended
	}
	command, err := spec.Command(p.launch())
	if err != nil {
		return fmt.Errorf("build the command line of epoch %d: %w", p.Number, err)
	}
	p.command = command
	s.annotate(p)
	return nil
}
