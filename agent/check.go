package agent

import (
	"context"
	"fmt"
	"io"
	"strings"

	"outrider.org/outrider/agent/blueprint"
)

// CheckConfig validates a configuration as a start would, including Envoy's own validation of the
// bootstrap and conflicts with other instances on this host. It writes warnings and the result to
// out. The error is an *ExitError with the exit code of such a start.
func CheckConfig(ctx context.Context, options Options, out io.Writer) error {
	options.Config.UnreadableReason = unreadable
	report := blueprint.Check(ctx, options.Config,
		blueprint.CheckOptions{Builder: blueprint.BuilderForThisHost()})
	if len(report.Files) > 0 { // at least one file of the configuration was read
		clashes, err := checkConflicts(ctx, options.Config)
		if err != nil {
			return &ExitError{Code: ExitConfiguration, Err: err}
		}
		report.Errors, report.Warnings = append(report.Errors, clashes.Conflicts...),
			append(report.Warnings, clashes.Warnings...)
	}
	for _, warning := range report.Warnings {
		if _, err := fmt.Fprintln(out, "warning:", warning); err != nil {
			return err
		}
	}
	switch {
	case report.RequiredProgramMissing && len(report.Errors) == 1:
		return &ExitError{Code: ExitProgramMissing, Err: report.Errors}
	case report.TransientFailure && len(report.Errors) == 1:
		return &ExitError{Code: ExitInternal, Err: report.Errors}
	case len(report.Errors) > 0:
		return &ExitError{Code: ExitConfiguration, Err: report.Errors}
	}
	_, err := fmt.Fprintf(out, "configuration is valid: %s\n", strings.Join(report.Files, ", "))
	return err
}
