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

// TestViews_DropsIdleOnes serves proxies that differ in a label, and disconnects them: the views
// without a proxy are dropped.
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
			return feed.AddWatcher()
		}
		holds := func(when string, views int) {
			t.Helper()
			changes <- []string{path}
			changes <- nil // the server receives this once it has processed the previous change
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
		ask("b")() // the proxy connects again for a short time
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

// TestViews_InventedNodesCostNothing: a proxy that sends invented nodes creates at most MaxViews
// views. Other proxies are served, and one of a new kind is served once a view is not used any
// more.
func TestViews_InventedNodesCostNothing(t *testing.T) {
	directory := t.TempDir()
	path := filepath.Join(directory, "web.yaml")
	write(t, path, fmt.Sprintf(webEntry, "web", "10.0.0.1"))
	synctest.Test(t, func(t *testing.T) {
		server, changes := start(t, discovery.Options{Files: []string{directory}, MaxViews: 8})
		feed, err := server.Feed(node("sidecar", "shop", nil))
		if err != nil {
			t.Fatal(err)
		}
		defer feed.AddWatcher()()
		refused := 0
		var leave func()
		for i := range 100 {
			labels := map[string]any{"invented": fmt.Sprint(i)}
			invented, err := server.Feed(node("sidecar", "shop", labels))
			if err != nil {
				refused++
				continue
			}
			leave = invented.AddWatcher()
			defer leave()
		}
		if views := server.Stats().Views; refused != 93 || views != 8 {
			t.Errorf("%d of 100 refused, %d views", refused, views)
		}
		_, newer := feed.Current()
		write(t, path, fmt.Sprintf(webEntry, "web", "10.0.0.2"))
		changes <- []string{path}
		select {
		case <-newer:
		case <-time.After(time.Minute):
			t.Error("the proxy gets no changes")
		}
		leave()
		time.Sleep(time.Minute)
		if _, err := server.Feed(node("sidecar", "shop",
			map[string]any{"app": "new"})); err != nil {
			t.Errorf("a new kind after one that is not used: %v", err)
		}
		if feed.IdleSince() != (time.Time{}) || server.Stats().Views != 8 {
			t.Errorf("%d views", server.Stats().Views)
		}
	})
}
