package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/identity"
)

// storeTime bounds the wait until the agent has stored its certificate.
const storeTime = 10 * time.Second

// undoTime bounds the reload, or the stop of the unit, that undoes a join.
const undoTime = 5 * time.Minute

// write writes the files of the join, after it has recorded their previous state.
func (p *joinPlan) write() error {
	if err := p.change.save(p.Roots, p.Token, p.DropIn); err != nil {
		return err
	}
	for _, file := range p.files {
		if err := write(file); err != nil {
			return err
		}
	}
	return nil
}

// enter makes the agent load the files, and waits until the host is in the mesh.
func (p *joinPlan) enter(ctx context.Context, shown *progress) (joined, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.request.timeout,
		fmt.Errorf("the host is not in the mesh after %s", p.request.timeout))
	defer cancel()
	shown.report(api.Progress{Phase: "loading the configuration"})
	if err := p.load(ctx, shown); err != nil {
		return joined{}, err
	}
	reason := ""
	for {
		status, types, err := p.look(ctx)
		if err == nil {
			if reason = p.inMesh(status, types, time.Now()); reason == "" {
				return p.result(status), nil
			}
			shown.report(api.Progress{Phase: "waiting: " + reason})
		} else if reason == "" || ctx.Err() == nil {
			reason = err.Error()
		}
		if p.started {
			if unit := p.a.unit(ctx, p.unit); unit.Active == "failed" {
				return joined{}, fmt.Errorf("%s failed: %s; see \"journalctl -u %[1]s\"", p.unit,
					unit.Status)
			}
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return joined{}, fmt.Errorf("%w: %s", context.Cause(ctx), reason)
		}
	}
}

// look requests the status of the agent and the state of Envoy's xDS resources.
func (p *joinPlan) look(ctx context.Context) (api.Status, []api.ResourceType, error) {
	status, err := p.client.Status(ctx)
	if err != nil {
		return status, nil, err
	}
	types, err := p.client.ResourceTypes(ctx)
	return status, types, err
}

func (p *joinPlan) result(s api.Status) joined {
	r := joined{Address: s.Discovery.Address, SPIFFEID: p.spiffeID, Epoch: s.CurrentEpoch,
		NotAfter: certified(s, time.Now())}
	for _, file := range p.files {
		r.Files = append(r.Files, file.Path)
	}
	return r
}

// load makes the agent reload or, if it does not run, enables and starts its unit.
func (p *joinPlan) load(ctx context.Context, shown *progress) error {
	if p.running {
		return p.reload(ctx, shown)
	}
	p.disabled = systemctl(ctx, "is-enabled", "--quiet", p.unit) != nil
	p.started = true
	_ = systemctl(ctx, "reset-failed", p.unit) // a later state "failed" is a failure of this start
	if err := systemctl(ctx, "enable", "--quiet", p.unit); err != nil {
		return err
	}
	return systemctl(ctx, "start", "--no-block", p.unit)
}

// reload makes the agent reload. It returns an error if the agent refuses the configuration.
func (h *meshHost) reload(ctx context.Context, shown *progress) error {
	result, err := h.client.Reload(ctx, api.ReloadRequest{IfChanged: true}, shown.report)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return err
	}
	if result.Outcome == api.OutcomeRefused {
		return errors.New("reload refused:\n  " + strings.Join(result.Reasons, "\n  "))
	}
	return nil
}

// withConditions adds the sentences of the agent's active error conditions to the error of a failed
// join.
func (h *meshHost) withConditions(ctx context.Context, failed error) error {
	now, err := h.client.Status(ctx)
	if err != nil {
		return failed
	}
	for _, c := range now.Conditions {
		if c.Severity == condition.Error {
			failed = fmt.Errorf("%w\n  %s", failed, c.Sentence)
		}
	}
	return failed
}

// undo restores the files and the agent after a failed join. It returns the error failed, with a
// sentence that states whether the join was undone completely.
func (p *joinPlan) undo(ctx context.Context, failed error, shown *progress) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	shown.report(api.Progress{Phase: "undoing the join"})
	err := p.change.undo()
	switch {
	case p.started:
		err = errors.Join(err, systemctl(ctx, "stop", p.unit))
		if p.disabled {
			err = errors.Join(err, systemctl(ctx, "disable", "--quiet", p.unit))
		}
		err = errors.Join(err, p.removeStored())
	case p.running:
		err = errors.Join(err, p.reload(ctx, shown))
	}
	if err != nil {
		return fmt.Errorf("%w\nthe join could not be undone completely: %w", failed, err)
	}
	return fmt.Errorf("%w\nthe join was undone: files and agent are as before", failed)
}

// removeToken waits until the agent has stored its certificate for the next start, and then removes
// the copy of the token. If it does not remove the copy, it records the reason in r.Token.
func (p *joinPlan) removeToken(ctx context.Context, r *joined) {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	if p.config.STS.Port != 0 {
		r.Token = p.Token + " stays: [sts] uses it"
		return
	}
	for {
		status, err := p.client.Status(ctx)
		stored := ""
		for _, i := range status.Identities {
			if i.Name == identity.DefaultSecret {
				stored = i.StorageState
			}
		}
		switch {
		case err != nil:
			r.Token = p.Token + " stays: " + err.Error()
			return
		case stored == api.IdentityNotStored:
			r.Token = p.Token + " stays: the certificate is not stored for the next start of the " +
				"agent ([identity] persist)"
			return
		case stored == api.IdentityStoredSealed:
			if err := remove(p.Token); err != nil {
				r.Token = err.Error()
				return
			}
			r.Files = slices.DeleteFunc(r.Files, func(path string) bool { return path == p.Token })
			return
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			r.Token = p.Token + " stays: the certificate is not stored yet"
			return
		}
	}
}

// systemctl runs systemctl. An error contains its output.
func systemctl(ctx context.Context, arguments ...string) error {
	out, err := exec.CommandContext(ctx, "systemctl", arguments...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(arguments, " "), err,
			strings.TrimSpace(string(out)))
	}
	return nil
}
