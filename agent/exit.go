package agent

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/cloud"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/hostconflict"
	"outrider.org/outrider/agent/keeper"
	"outrider.org/outrider/agent/relay"
)

// The exit codes of outriderd. The comments have the names of sysexits.h.
const (
	ExitOK = 0
	// EX_UNAVAILABLE: Envoy or outrider-bootstrap is missing or not executable
	ExitProgramMissing = 69
	// EX_SOFTWARE: a possibly transient failure; the only one of these codes that systemd retries
	ExitInternal          = 70
	ExitAlreadyRuns       = 73 // EX_CANTCREAT: another outriderd runs on this configuration
	ExitRestartsExhausted = 75 // EX_TEMPFAIL: Envoy exited too often (restart_limit)
	ExitConfiguration     = 78 // EX_CONFIG
)

// ExitError is an error that ends outriderd with an exit code of its own.
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

// exit returns an ExitError with a code, or with ExitInternal if the error is transient.
func exit(code int, err error) *ExitError {
	if transient(err) {
		code = ExitInternal
	}
	return &ExitError{Code: code, Err: err}
}

// transientErrors lists transient errors: a shortage of resources, or a keeper or program that
// starts or is being replaced.
var transientErrors = []error{
	unix.EAGAIN, unix.ENOMEM, unix.ENFILE, unix.EMFILE, unix.ENOBUFS, unix.ENOSPC,
	unix.EINTR, unix.EIO,
	unix.ETXTBSY, unix.ECONNREFUSED,
	keeper.ErrClosed, keeper.ErrNotRunning, keeper.ErrBusy, envoy.ErrKilled, hostconflict.ErrPortInUse,
	cloud.ErrUnavailable, relay.ErrNoBootstrap,
}

// transient reports whether an error is transient, so that a retry may succeed with the same
// configuration and programs. A config.Errors is transient if all its causes are.
func transient(err error) bool {
	if all, ok := errors.AsType[config.Errors](err); ok {
		lasts := func(one *config.Error) bool { return !transient(one.Cause) }
		return len(all) > 0 && !slices.ContainsFunc(all, lasts)
	}
	if name, ok := errors.AsType[*net.DNSError](err); ok {
		return !name.IsNotFound
	}
	var slow interface{ Timeout() bool }
	refusals := []keeper.Code{keeper.CodeInternal, keeper.CodeLimit, keeper.CodeStopping,
		keeper.CodeReexecuteFailed}
	return errors.As(err, &slow) && slow.Timeout() ||
		slices.ContainsFunc(transientErrors, func(one error) bool { return errors.Is(err, one) }) ||
		slices.ContainsFunc(refusals,
			func(code keeper.Code) bool { return keeper.HasCode(err, code) })
}
