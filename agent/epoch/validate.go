package epoch

import (
	"context"
	"fmt"

	"outrider.org/outrider/agent/envoy"
)

// validate has Envoy itself check the bootstrap. It catches what cannot be parsed and unknown clusters of routes, not a port
// that is in use.
func (s *Supervisor) validate(ctx context.Context, keeper Keeper, spec *Spec, launch Launch) error {
	command, err := spec.Validation(launch)
	if err != nil {
		return fmt.Errorf("build the command line that validates epoch %d: %w", launch.Number, err)
	}
	running, cancel := context.WithTimeout(ctx, validateTimeout)
	defer cancel()
	result, err := keeper.Run(running, command)
	if err != nil {
		return fmt.Errorf("validate the bootstrap of epoch %d: %w", launch.Number, err)
	}
	if result.Exit != 0 {
		return fmt.Errorf("Envoy does not accept %s: %s", launch.BootstrapPath, envoy.Complaint(result.Output))
	}
	return nil
}
