package epoch

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/keeper"
	"outrider.org/outrider/scripts/parts"
)

// If the keeper ends right after an exit, the supervisor may stop reading from the connection
// before it receives the exit. The link must not block then, but reconnect.
func TestLink_ExitAtTheEndOfTheKeeper(t *testing.T) {
	options := keeper.LaunchOptions{Folder: parts.ShortDir(t),
		Binary: parts.CopyProgram(t, "outrider-keeper")}
	client, err := keeper.StartKeeper(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	link := NewKeeperLink(KeeperLinkOptions{Logger: slog.New(slog.DiscardHandler)})
	forwarded := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	connection := link.set(client)
	go func() {
		defer close(forwarded)
		link.forward(ctx, connection)
	}()
	if _, err := client.Start(t.Context(), keeper.StartSpec{ID: "a", Path: "/bin/true"}); err != nil {
		t.Fatal(err)
	}
	parts.Eventually(t, time.Minute, "the process has ended", func() bool {
		processes, err := client.Processes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(processes) == 1 && processes[0].Exit != nil
	})
	if err := unix.Kill(client.Info().PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-forwarded
	if ctx.Err() != nil {
		t.Error("the link waits on a connection that has ended")
	}
}
