package keeper

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/access"
)

const (
	// accessWait is the time within which a file system must respond to a check.
	accessWait = 2 * time.Second
	// maxChecks bounds the concurrent checks, including those that wait for an unresponsive file
	// system.
	maxChecks = 16
	// maxRequests bounds the concurrent CheckAccess calls of a client, so that maxCalls has room
	// for other calls.
	maxRequests = 8
)

// CheckAccess checks whether Envoy's user can read an absolute path inside Envoy's sandbox. Callers
// use the result only to refuse or report a file, as it may be outdated at once. An error means
// that the result is unknown.
func (c *Client) CheckAccess(ctx context.Context, path string) (access.Result, error) {
	select {
	case c.checks <- struct{}{}:
		defer func() { <-c.checks }()
	case <-ctx.Done():
		return access.Result{}, ctx.Err()
	}
	r, err := c.call(ctx, request{Operation: operationAccess, Path: path})
	if HasCode(err, CodeInvalid) && checkable(path) == nil {
		return access.Result{}, fmt.Errorf("the keeper is older than the agent and "+
			"cannot check access to files (%w); systemctl reload outrider-envoy", err)
	}
	if err != nil {
		return access.Result{}, err
	}
	if r.Access == nil {
		return access.Result{}, errIncomplete
	}
	return *r.Access, nil
}

func checkable(path string) *Error {
	if !filepath.IsAbs(path) || len(path) >= unix.PathMax {
		return refuse(CodeInvalid, "access: an absolute path of less than %d bytes is needed",
			unix.PathMax)
	}
	return nil
}

// access checks a path for Envoy's user. It returns after accessWait even if the file system does
// not respond. The check runs in the keeper, not in a child: Envoy, which has the same user, could
// trace a child and falsify its result.
func (s *server) access(path string) (*access.Result, error) {
	if refusal := checkable(path); refusal != nil {
		return nil, refusal
	}
	deadline := time.NewTimer(accessWait)
	defer deadline.Stop()
	select {
	case s.checks <- struct{}{}:
	case <-deadline.C:
		return nil, refuse(CodeLimit, "%d checks of files run already", maxChecks)
	}
	type answer struct {
		access.Result
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		defer func() { <-s.checks }()
		result, err := access.Check(path)
		answers <- answer{result, err}
	}()
	select {
	case a := <-answers:
		return &a.Result, a.err
	case <-deadline.C:
		return nil, refuse(CodeInternal, "%s: its file system does not answer", path)
	}
}

// holdChecks waits until no check runs, and prevents new ones until release is called. The keeper
// calls it before exec, which waits until all threads have ended: a thread blocked in an
// unresponsive file system may never end.
func (s *server) holdChecks() (release func(), err error) {
	deadline := time.NewTimer(accessWait)
	defer deadline.Stop()
	held := 0
	release = func() {
		for range held {
			<-s.checks
		}
	}
	for ; held < maxChecks; held++ {
		select {
		case s.checks <- struct{}{}:
		case <-deadline.C:
			release()
			return nil, refuse(CodeReexecuteFailed, "cannot re-execute the keeper: a file system does not "+
				"answer, on which it checks a file")
		}
	}
	return release, nil
}
