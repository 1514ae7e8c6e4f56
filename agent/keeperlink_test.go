package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"outrider.org/outrider/agent/keeper"
)

// A keeper of an older protocol is asked to replace itself, once, and then connected to; a newer one never is.
func TestKeeperOfAnOlderVersionIsUpgraded(t *testing.T) {
	older, newer := &keeper.VersionError{Keeper: 1, Agent: 2}, &keeper.VersionError{Keeper: 2, Agent: 1}
	for _, c := range []struct {
		name     string
		answers  []error // of connecting
		refuses  error   // of upgrading
		upgrades int
		fails    string
	}{
		{"the same version", []error{nil}, nil, 0, ""},
		{"cured", []error{older, nil}, nil, 1, ""},
		{"the installed one is as old", []error{older, older}, nil, 1, "version 1"},
		{"and stays so", []error{older, older, older}, nil, 1, "version 1"},
		{"it is newer", []error{newer, newer}, nil, 0, "version 2"},
		{"it refuses", []error{older}, errors.New("no such program"), 1, "no such program"},
		{"no keeper", []error{keeper.ErrNotRunning}, nil, 0, "no keeper"},
	} {
		upgrades := 0
		link := &keeperLink{log: slog.New(slog.DiscardHandler)}
		link.connect = func(context.Context) (*keeper.Client, error) {
			err := c.answers[0]
			c.answers = c.answers[1:]
			if err != nil {
				return nil, err
			}
			return &keeper.Client{}, nil
		}
		link.upgrade = func(context.Context) error { upgrades++; return c.refuses }
		client, err := (*keeper.Client)(nil), error(nil)
		for replaced := false; len(c.answers) > 0; {
			client, err = link.reach(t.Context(), &replaced)
		}
		if upgrades != c.upgrades || (client == nil) != (err != nil) {
			t.Errorf("%s: %d upgrades, %v", c.name, upgrades, err)
		}
		if c.fails == "" && err != nil || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.fails)
		}
	}
}
