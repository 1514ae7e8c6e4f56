package agent

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"

	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/keeper"
)

// rootsKeeper implements keeper.Dialer. It returns a client of a keeper whose user is root.
type rootsKeeper struct{ keeper.Dialer }

func (rootsKeeper) Dial(context.Context) (*keeper.Client, error) { return &keeper.Client{}, nil }

// A secret that Envoy requests before the keeper is connected is read once it is connected, not
// refused.
func TestEnvoyMayNotHave_WaitsForTheKeeper(t *testing.T) {
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	synctest.Test(t, func(t *testing.T) {
		link := epoch.NewKeeperLink(epoch.KeeperLinkOptions{Dialer: rootsKeeper{},
			Logger: slog.New(slog.DiscardHandler)})
		answer := make(chan string, 1)
		go func() { answer <- envoyMayNotHave(link, file) }()
		synctest.Wait()
		if len(answer) > 0 {
			t.Fatal("answered without the keeper: " + <-answer)
		}
		if err := link.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		link.MarkReady()
		if why := <-answer; why != "" {
			t.Error("denied to root: " + why)
		}
	})
}
