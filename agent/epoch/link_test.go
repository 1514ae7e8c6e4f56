package epoch

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"outrider.org/outrider/agent/keeper"
)

// fakeDialer is a fake keeper.Dialer.
type fakeDialer struct {
	dial    func() (*keeper.Client, error)
	upgrade func() error
}

func (d fakeDialer) Dial(context.Context) (*keeper.Client, error) { return d.dial() }
func (d fakeDialer) Upgrade(context.Context) error                { return d.upgrade() }

// A KeeperLink upgrades a keeper with an older protocol once, and then connects to it. It never
// upgrades a newer one.
func TestLinkDial_UpgradesAnOlderKeeper(t *testing.T) {
	older, newer := &keeper.VersionError{Keeper: 1, Agent: 2},
		&keeper.VersionError{Keeper: 2, Agent: 1}
	for _, c := range []struct {
		name     string
		answers  []error // results of successive calls of Connect
		refuses  error   // result of Upgrade
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
		link := NewKeeperLink(KeeperLinkOptions{Logger: slog.New(slog.DiscardHandler),
			Dialer: fakeDialer{
				dial: func() (*keeper.Client, error) {
					err := c.answers[0]
					c.answers = c.answers[1:]
					if err != nil {
						return nil, err
					}
					return &keeper.Client{}, nil
				},
				upgrade: func() error { upgrades++; return c.refuses },
			}})
		client, err := (*keeper.Client)(nil), error(nil)
		for replaced := false; len(c.answers) > 0; {
			client, err = link.dial(t.Context(), &replaced)
		}
		if upgrades != c.upgrades || (client == nil) != (err != nil) {
			t.Errorf("%s: %d upgrades, %v", c.name, upgrades, err)
		}
		if c.fails == "" && err != nil || c.fails != "" &&
			(err == nil || !strings.Contains(err.Error(), c.fails)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.fails)
		}
	}
}

func TestLinkOpen_WaitsForAnAgentThatEnds(t *testing.T) {
	for name, busyFor := range map[string]time.Duration{"it ends": keeperPatience - time.Second,
		"it goes on": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				link := NewKeeperLink(KeeperLinkOptions{Logger: slog.New(slog.DiscardHandler),
					Dialer: fakeDialer{
						dial: func() (*keeper.Client, error) {
							if time.Since(began) < busyFor {
								return nil, &keeper.BusyError{PID: 1}
							}
							return &keeper.Client{}, nil
						}}})
				err := link.Connect(t.Context())
				if ends := busyFor < keeperPatience; ends != (err == nil) || !ends &&
					!errors.Is(err, keeper.ErrBusy) {
					t.Errorf("after %v: %v", time.Since(began), err)
				}
			})
		})
	}
}

func TestLinkReconnect_LogsALostKeeperOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		began := time.Now()
		link := NewKeeperLink(KeeperLinkOptions{Logger: slog.New(slog.NewTextHandler(&out, nil)),
			Dialer: fakeDialer{
				dial: func() (*keeper.Client, error) {
					if time.Since(began) < time.Hour {
						return nil, keeper.ErrNotRunning
					}
					return &keeper.Client{}, nil
				}}})
		link.set(&keeper.Client{})
		if _, err := link.reconnect(t.Context()); err != nil {
			t.Error(err)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], keeper.ErrNotRunning.Error()) ||
			!strings.Contains(lines[1], "reconnected") {
			t.Errorf("logged in an hour:\n%s", out.String())
		}
	})
}
