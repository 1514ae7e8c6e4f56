package agent

import "fmt"

// The exit codes of outriderd (interfaces.md, "Programs"; names from sysexits.h).
const (
	ExitOK            = 0
	ExitNoProgram     = 69 // EX_UNAVAILABLE: Envoy or outrider-bootstrap is missing or not executable
	ExitInternal      = 70 // EX_SOFTWARE
	ExitAlreadyRuns   = 73 // EX_CANTCREAT: another outriderd runs on this configuration
	ExitGaveUp        = 75 // EX_TEMPFAIL: restart_limit within restart_window
	ExitConfiguration = 78 // EX_CONFIG
)

// ExitError is an error that outriderd ends with a code of its own.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ExitError) Unwrap() error { return e.Err }

func exitf(code int, format string, arguments ...any) error {
	return &ExitError{Code: code, Err: fmt.Errorf(format, arguments...)}
}
