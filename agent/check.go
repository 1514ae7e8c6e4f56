package agent

import (
	"context"
	"fmt"
	"io"
	"strings"

	"outrider.org/outrider/agent/blueprint"
)

// Check looks at a configuration as a start would, Envoy's own opinion of the bootstrap included,
// and writes what it finds. Its error is what a start would refuse, for the sake of others on this
// host too, with the exit code that the start would have.
func Check(ctx context.Context, options Options, out io.Writer) error {
	report := blueprint.Check(ctx, options.Config, blueprint.Checker{Maker: blueprint.ThisHost()})
	if len(report.Files) > 0 { // else not even the configuration could be read
		clashes, err := checkNeighbours(ctx, options.Config)
		if err != nil {
			return &ExitError{Code: ExitConfiguration, Err: err}
		}
		report.Errors, report.Warnings = append(report.Errors, clashes.Clashes...), append(report.Warnings, clashes.Warnings...)
	}
	for _, warning := range report.Warnings {
		if _, err := fmt.Fprintln(out, "warning:", warning); err != nil {
			return err
		}
	}
	switch {
	case report.Missing && len(report.Errors) == 1:
		return &ExitError{Code: ExitNoProgram, Err: report.Errors}
	case report.Passing && len(report.Errors) == 1:
		return &ExitError{Code: ExitInternal, Err: report.Errors}
	case len(report.Errors) > 0:
		return &ExitError{Code: ExitConfiguration, Err: report.Errors}
	}
	_, err := fmt.Fprintf(out, "configuration is valid: %s\n", strings.Join(report.Files, ", "))
	return err
}
