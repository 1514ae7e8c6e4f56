package discovery_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"outrider.org/outrider/agent/discovery"
)

// TestViews_DropsIdleOnes serves proxies that differ by a label, and disconnects them.
func TestViews_DropsIdleOnes(t *testing.T) {
	directory := t.TempDir()
	path := filepath.Join(directory, "web.yaml")
	write(t, path, fmt.Sprintf(webEntry, "web", "10.0.0.1"))
	synctest.Test(t, func(t *testing.T) {
		server, changes := start(t, discovery.Options{Files: []string{directory}, MaxViews: 3})
		ask := func(label string) func() {
			t.Helper()
			feed, err := server.Feed(node("sidecar", "shop", map[string]any{"hash": label}))
			if err != nil {
				t.Fatal(err)
			}
			return feed.Follow()
		}
		holds := func(when string, views int) {
			t.Helper()
			changes <- []string{path}
			changes <- nil // taken once the one before is done
			if got := server.Stats().Views; got != views {
				t.Errorf("%s: %d views, want %d", when, got, views)
			}
		}
		leaveA, leaveB, leaveC := ask("a"), ask("b"), ask("c")
		defer leaveA()
		if _, err := server.Feed(node("sidecar", "shop",
			map[string]any{"hash": "d"})); err == nil || !strings.Contains(err.Error(), "3 kinds") {
			t.Errorf("a fourth kind of three: %v", err)
		}
		time.Sleep(time.Hour)
		holds("all are followed", 3)
		leaveB()
		holds("one left just now", 3)
		time.Sleep(9 * time.Minute)
		ask("b")() // it is back for a moment
		leaveC()
		time.Sleep(9 * time.Minute)
		holds("two are away for nine minutes", 3)
		time.Sleep(2 * time.Minute)
		ask("d")()
		holds("two are away for eleven minutes, and there is a new one", 2)
		time.Sleep(time.Hour)
		holds("the one asked for last stays", 2)
	})
}
