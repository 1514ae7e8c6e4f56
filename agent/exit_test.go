package agent

import (
	"context"
	"errors"
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
		return loaded.Fault("envoy.binary", fmt.Sprint(cause), "").Because(cause)
	}
	for name, c := range map[string]struct {
		err    error
		passes bool
	}{
		"a time-out":                        {fmt.Errorf("ask: %w", context.DeadlineExceeded), true},
		"no more processes":                 {fmt.Errorf("fork: %w", unix.EAGAIN), true},
		"no more processes at the keeper":   {&keeper.Error{Code: keeper.CodeInternal, Message: "fork"}, true},
		"the keeper replaces itself":        {fmt.Errorf("ask: %w", keeper.ErrClosed), true},
		"the keeper stops":                  {&keeper.Error{Code: keeper.CodeStopping}, true},
		"no such program at the keeper":     {&keeper.Error{Code: keeper.CodeExecute}, false},
		"a name server that does not serve": {&net.DNSError{Err: "server misbehaving", IsTemporary: true}, true},
		"a name that does not exist":        {&net.DNSError{Err: "no such host", IsNotFound: true}, false},
		"no Envoy":                          {fmt.Errorf("%w: %w", envoy.ErrNotFound, unix.ENOENT), false},
		"an invalid value":                  {config.Errors{fault(nil)}, false},
		"a file that cannot be read now":    {config.Errors{fault(unix.EMFILE)}, true},
		"that and an invalid value":         {config.Errors{fault(unix.EMFILE), fault(nil)}, false},
	} {
		for _, code := range []int{ExitNoProgram, ExitConfiguration} {
			want := code
			if c.passes {
				want = ExitInternal
			}
			if got := exit(code, c.err); got.Code != want || !errors.Is(got, c.err) && len(got.Error()) == 0 {
				t.Errorf("%s: %d became %d, want %d", name, code, got.Code, want)
			}
		}
	}
}

// What Envoy is asked at a start does not answer, or is killed: each way in which that comes back is tried again.
func TestExit_EnvoyThatDoesNotAnswer(t *testing.T) {
	folder := t.TempDir()
	program := filepath.Join(folder, "envoy")
	for script, passes := range map[string]bool{"exec sleep 60": true, "kill -9 $$": true, "kill -15 $$": true, "exit 3": false, "echo nonsense": false} {
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		_, err := envoy.Inspect(ctx, envoy.Local{}, program)
		if script == "exec sleep 60" {
			loaded := &config.Loaded{Config: &config.Config{Envoy: config.Envoy{OutlierLogPath: "/x"}}}
			unknown := blueprint.Writable(ctx, envoy.Local{}, loaded)
			if got := exit(ExitConfiguration, unknown); unknown == nil || got.Code != ExitInternal {
				t.Errorf("whether a file can be written: %v, exit %d", unknown, got.Code)
			}
		}
		cancel()
		if got := exit(ExitNoProgram, err); err == nil || (got.Code == ExitInternal) != passes {
			t.Errorf("%s: %v, exit %d", script, err, got.Code)
		}
	}
}
