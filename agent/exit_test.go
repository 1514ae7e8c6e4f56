package agent

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/keeper"
)

func TestExit_WhatMayPassIsTriedAgain(t *testing.T) {
	loaded := &config.Loaded{Config: &config.Config{}}
	fault := func(cause error) *config.Error {
		return loaded.KeyError("envoy.binary", fmt.Sprint(cause), "").WithCause(cause)
	}
	for name, c := range map[string]struct {
		err       error
		transient bool
	}{
		"a time-out":        {fmt.Errorf("ask: %w", context.DeadlineExceeded), true},
		"no more processes": {fmt.Errorf("fork: %w", unix.EAGAIN), true},
		"no more processes at the keeper": {&keeper.Error{Code: keeper.CodeInternal,
			Message: "fork"}, true},
		"the keeper replaces itself":    {fmt.Errorf("ask: %w", keeper.ErrClosed), true},
		"the keeper stops":              {&keeper.Error{Code: keeper.CodeStopping}, true},
		"no such program at the keeper": {&keeper.Error{Code: keeper.CodeCannotExecute}, false},
		"a name server that does not serve": {&net.DNSError{Err: "server misbehaving",
			IsTemporary: true}, true},
		"a name that does not exist": {&net.DNSError{Err: "no such host", IsNotFound: true}, false},
		"no Envoy": {fmt.Errorf("%w: %w", envoy.ErrNotFound, unix.ENOENT),
			false},
		"an invalid value":               {config.Errors{fault(nil)}, false},
		"a file that cannot be read now": {config.Errors{fault(unix.EMFILE)}, true},
		"that and an invalid value":      {config.Errors{fault(unix.EMFILE), fault(nil)}, false},
	} {
		for _, code := range []int{ExitProgramMissing, ExitConfiguration} {
			want := code
			if c.transient {
				want = ExitInternal
			}
			if got := exit(code, c.err); got.Code != want || got.Error() != c.err.Error() {
				t.Errorf("%s: %d became %d, want %d", name, code, got.Code, want)
			}
		}
	}
}

func TestExit_EnvoyThatDoesNotAnswer(t *testing.T) {
	program := filepath.Join(t.TempDir(), "envoy")
	for _, c := range []struct {
		script    string
		limit     time.Duration
		transient bool
	}{
		{"exec sleep 60", 300 * time.Millisecond, true},
		{"kill -9 $$", time.Minute, true},
		{"kill -15 $$", time.Minute, true},
		{"exit 3", time.Minute, false},
		{"echo nonsense", time.Minute, false},
	} {
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+c.script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), c.limit)
		_, err := envoy.Inspect(ctx, envoy.LocalRunner{}, program)
		cancel()
		if got := exit(ExitProgramMissing, err); err == nil ||
			(got.Code == ExitInternal) != c.transient {
			t.Errorf("%s: %v, exit %d", c.script, err, got.Code)
		}
	}
}

func TestExit_WritableDoesNotAnswer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	c := &config.Config{Envoy: config.Envoy{OutlierLogPath: "/var/log/outrider/outlier.log"}}
	err := blueprint.CheckEnvoyCanWrite(ctx, envoy.LocalRunner{}, &config.Loaded{Config: c})
	if got := exit(ExitConfiguration, err); err == nil || got.Code != ExitInternal {
		t.Errorf("%v, exit %d", err, got.Code)
	}
}
