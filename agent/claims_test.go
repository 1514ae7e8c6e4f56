package agent

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"testing"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/hostconflict"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/scripts/parts"
)

// Once an agent answers queries of other agents, it reports since when it has been reachable.
// Otherwise two agents that start at the same time would yield to each other.
func TestAPI_PresentBeforeItAnswers(t *testing.T) {
	reachable := &lifecycle.Readiness{}
	presence := hostconflict.NewReachableTime(reachable.Ready())
	b := &base{log: slog.New(slog.DiscardHandler), board: condition.NewRegistry()}
	c := &config.Config{}
	c.Paths.RuntimeDir = parts.ShortDir(t)
	socket := newAPI(b, c, &backend{}, reachable)
	if !presence.Since().IsZero() {
		t.Error("present before the socket is bound")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- socket.Run(ctx) }()
	<-socket.Ready()
	if presence.Since().IsZero() {
		t.Error("not present, though others can ask")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// An agent that is ending may close a connection without a response. It does not run any more, so
// an agent that starts at the same time need not yield to it.
func TestQueryAgent_ThatEnds(t *testing.T) {
	folder := parts.ShortDir(t)
	listener, err := net.Listen("unix", filepath.Join(folder, api.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		if c, err := listener.Accept(); err == nil {
			_ = c.Close()
		}
		_ = listener.Close() // removes the socket
	}()
	if agent, running := queryAgent(t.Context(), folder); running {
		t.Errorf("it runs: %+v", agent)
	}
}
