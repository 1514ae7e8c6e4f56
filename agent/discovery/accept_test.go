package discovery_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/store"
)

// batch returns an update of the source named "memory", with a ServiceEntry for each address.
func batch(all bool, addresses ...string) discovery.SourceUpdate {
	b := discovery.SourceUpdate{Source: "memory", Complete: all}
	for i, address := range addresses {
		name := fmt.Sprintf("web%d", i)
		b.Inputs = append(b.Inputs, store.SourceInput{Path: "memory:" + name,
			Text: []byte(fmt.Sprintf(webEntry, name, address))})
	}
	return b
}

// TestAccept_DebouncesAndMerges delivers updates before and during Run: the first push includes
// those delivered before Run, and updates in quick succession cause a single push.
func TestAccept_DebouncesAndMerges(t *testing.T) {
	directory := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		server, err := discovery.New(discovery.Options{Files: []string{directory},
			Sources: []string{"memory", store.FilesSource},
			Settings: discovery.Settings{DebounceAfter: 100 * time.Millisecond,
				DebounceMax: time.Second}})
		if err != nil {
			t.Fatal(err)
		}
		server.AcceptUpdate(batch(false, "10.0.0.8", "10.0.0.8", "10.0.0.8"))
		server.AcceptUpdate(batch(true, "10.0.0.9", "10.0.0.9"))
		runServer(t, server)
		feed := feedOf(t, server, "sidecar")
		first, _ := feed.Current()
		time.Sleep(2 * time.Second)
		before, _ := feed.Current()
		if first.Sequence != before.Sequence {
			t.Errorf("%d more pushes of what preceded Run", before.Sequence-first.Sequence)
		}
		hosts := func() (hosts []string) {
			for name := range versions(feed) {
				if name, ok := strings.CutPrefix(name, "Cluster outbound|80||"); ok {
					hosts = append(hosts, name)
				}
			}
			slices.Sort(hosts)
			return hosts
		}
		if diff := cmp.Diff([]string{"web0.test", "web1.test"}, hosts()); diff != "" {
			t.Errorf("after the start (-want +got):\n%s", diff)
		}
		for i := range 5 {
			server.AcceptUpdate(batch(false, fmt.Sprintf("10.0.0.%d", i)))
			time.Sleep(50 * time.Millisecond)
		}
		server.AcceptUpdate(discovery.SourceUpdate{Source: "memory",
			Inputs: []store.SourceInput{{Path: "memory:web1"}}})
		time.Sleep(2 * time.Second)
		after, _ := feed.Current()
		if n := after.Sequence - before.Sequence; n != 1 {
			t.Errorf("%d pushes of six batches", n)
		}
		if diff := cmp.Diff([]string{"web0.test"}, hosts()); diff != "" {
			t.Errorf("after a removal (-want +got):\n%s", diff)
		}
	})
}

// TestAccept_SameResourcesAsFiles: the same objects result in the same resources, whether they are
// read from files or accepted from another source.
func TestAccept_SameResourcesAsFiles(t *testing.T) {
	directory := t.TempDir()
	texts := []string{fmt.Sprintf(webEntry, "web", "10.0.0.1"), fmt.Sprintf(webRule, "web", "RANDOM"),
		fmt.Sprintf(webRoute, "web", "3s")}
	b := discovery.SourceUpdate{Source: "memory", Complete: true}
	for i, text := range texts {
		name := fmt.Sprintf("%d.yaml", i)
		write(t, filepath.Join(directory, name), text)
		b.Inputs = append(b.Inputs, store.SourceInput{Path: "memory:" + name, Text: []byte(text)})
	}
	files, _ := start(t, discovery.Options{Files: []string{directory}})
	memory, err := discovery.New(discovery.Options{Sources: []string{"memory"}})
	if err != nil {
		t.Fatal(err)
	}
	memory.AcceptUpdate(b)
	runServer(t, memory)
	if diff := cmp.Diff(versions(feedOf(t, files, "sidecar")),
		versions(feedOf(t, memory, "sidecar"))); diff != "" {
		t.Errorf("versions (-files +memory):\n%s", diff)
	}
}
