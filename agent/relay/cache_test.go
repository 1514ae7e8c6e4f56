package relay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"outrider.org/outrider/agent/condition"
	xdsresource "outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

func held(names ...string) map[string]resource {
	all := map[string]resource{}
	for _, name := range names {
		all[name] = resource{name: name, version: "1", body: []byte("\n\x01" + name)}
	}
	return all
}

// written returns a cache that contains resources, and the content of its file.
func written(t testing.TB) (*Cache, []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cache")
	c := OpenCache(path, condition.NewRegistry())
	c.put("node", clusterType, "v1", held("a", "b"))
	c.put("node", endpointType, "v2", held())
	c.put("node", xdsresource.SecretType, "v3", held("key"))
	c.put("other", clusterType, "v4", held("c"))
	_ = c.write()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return c, text
}

func TestCache_SurvivesARestart(t *testing.T) {
	before, text := written(t)
	board := condition.NewRegistry()
	after := OpenCache(before.path, board)
	for _, of := range []identity{"node", "other"} {
		for _, typeURL := range []string{clusterType, endpointType} {
			want, wantVersion := before.get(of, typeURL)
			got, version := after.get(of, typeURL)
			if version != wantVersion || !reflect.DeepEqual(got, want) {
				t.Errorf("%s of %s: %q %v, want %q %v", typeURL, of, version, got, wantVersion,
					want)
			}
		}
		if !after.savedAt(of).Equal(before.savedAt(of)) {
			t.Errorf("time of %s: %v", of, after.savedAt(of))
		}
	}
	if known, _ := after.get("node", xdsresource.SecretType); known != nil || bytes.Contains(text,
		[]byte("key")) {
		t.Error("secrets are cached")
	}
	if known, _ := after.get("stranger", clusterType); known != nil {
		t.Errorf("another node gets %v", known)
	}
	if info, err := os.Stat(before.path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, error %v", info.Mode(), err)
	}
	if len(board.Conditions()) > 0 {
		t.Errorf("%v", board.Conditions())
	}
}

func TestCache_HoldsTwoNodes(t *testing.T) {
	c := OpenCache(filepath.Join(t.TempDir(), "cache"), condition.NewRegistry())
	for _, of := range []identity{"a", "b", "a", "c"} {
		c.put(of, clusterType, "v", held("x"))
	}
	for of, want := range map[identity]bool{"a": true, "b": false, "c": true} {
		if known, _ := c.get(of, clusterType); (known != nil) != want {
			t.Errorf("node %s: %v", of, known)
		}
	}
}

func TestCache_RefusesDamagedFiles(t *testing.T) {
	_, good := written(t)
	changed := bytes.Clone(good)
	changed[len(fileHeader)+20] ^= 1
	cases := map[string]struct {
		text []byte
		want string
	}{
		"changed":   {changed, "the checksum of the file is wrong"},
		"truncated": {good[:len(good)-1], "the checksum of the file is wrong"},
		"header":    {good[:len(fileHeader)+3], "the file is truncated"},
		"empty":     {nil, "the file has another format or version"},
		"another version": {bytes.Replace(good, []byte("cache 1"), []byte("cache 2"), 1),
			"the file has another format or version"},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			path, board := filepath.Join(t.TempDir(), "cache"), condition.NewRegistry()
			if err := os.WriteFile(path, test.text, 0o600); err != nil {
				t.Fatal(err)
			}
			c := OpenCache(path, board)
			if known, _ := c.get("node", clusterType); known != nil {
				t.Errorf("it is used: %v", known)
			}
			all := board.Conditions()
			if len(all) != 1 || all[0].Code != conditionRefused ||
				!strings.Contains(all[0].Sentence, test.want) {
				t.Errorf("conditions %v", all)
			}
			c.put("node", clusterType, "v", held("a"))
			_ = c.write()
			if len(board.Conditions()) > 0 {
				t.Errorf("conditions after it was replaced: %v", board.Conditions())
			}
		})
	}
}

func TestCache_ReportsThatItCannotBeWritten(t *testing.T) {
	board := condition.NewRegistry()
	c := OpenCache(filepath.Join(t.TempDir(), "none", "cache"), board)
	c.put("node", clusterType, "v", held("a"))
	_ = c.write()
	if all := board.Conditions(); len(all) != 1 || all[0].Code != conditionUnwritten {
		t.Errorf("conditions %v", all)
	}
}

// TestCache_LeavesOutWhatDoesNotFit checks that a file that would be too large is written without
// the older node, and if necessary without the largest Wasm modules.
func TestCache_LeavesOutWhatDoesNotFit(t *testing.T) {
	board := condition.NewRegistry()
	c := OpenCache(filepath.Join(t.TempDir(), "cache"), board)
	c.most = 10 << 10
	c.put("old", clusterType, "v", map[string]resource{"a": {name: "a", body: make([]byte, 6<<10)}})
	c.put("new", clusterType, "v", map[string]resource{"a": {name: "a", body: make([]byte, 6<<10)}})
	_ = c.write()
	after := OpenCache(c.path, board)
	if len(after.nodes) != 1 || after.nodes[0].identity != "new" || len(board.Conditions()) > 0 {
		t.Errorf("%d nodes, %v", len(after.nodes), board.Conditions())
	}
	c.put("new", xdsresource.ExtensionType, "v", map[string]resource{
		"small": {name: "small", body: []byte("\n\x01a")},
		"large": {name: "large", body: make([]byte, 4<<10)}})
	_ = c.write()
	after = OpenCache(c.path, board)
	kept, _ := after.get("new", xdsresource.ExtensionType)
	if clusters, _ := after.get("new", clusterType); len(clusters) != 1 || len(kept) != 1 ||
		kept["small"].name == "" {
		t.Errorf("clusters %d, extensions %v", len(clusters), kept)
	}
	if all := board.Conditions(); len(all) != 1 || all[0].Code != conditionUnwritten ||
		!strings.Contains(all[0].Sentence, "1 Wasm extensions are not stored") {
		t.Errorf("%v", all)
	}
	if held, _ := c.get("new", xdsresource.ExtensionType); len(held) != 2 {
		t.Errorf("in memory: %v", held)
	}
}

func TestCache_IsWrittenAtTheEnd(t *testing.T) {
	c := OpenCache(filepath.Join(t.TempDir(), "cache"), condition.NewRegistry())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.run(ctx) }()
	c.put("node", clusterType, "v", held("a"))
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if known, _ := OpenCache(c.path, c.board).get("node", clusterType); known == nil {
		t.Error("the last change is lost")
	}
}

// TestCache_IsWrittenAgainAfterAFailure checks that a cache that could not be written because the
// disk was full is written once the disk has space, even if no resource has changed since.
func TestCache_IsWrittenAgainAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder := filepath.Join(t.TempDir(), "none")
		c := OpenCache(filepath.Join(folder, "cache"), condition.NewRegistry())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.run(ctx) }()
		c.put("node", clusterType, "v", held("a"))
		time.Sleep(2 * writeDelay)
		synctest.Wait()
		if len(c.board.Conditions()) != 1 {
			t.Fatalf("without the folder: %v", c.board.Conditions())
		}
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if _, err := os.Stat(c.path); err != nil || len(c.board.Conditions()) > 0 {
			t.Errorf("%v, %v", err, c.board.Conditions())
		}
		cancel()
		<-ended
	})
}

func TestCache_IsWrittenSoonAfterAChange(t *testing.T) {
	c := OpenCache(filepath.Join(t.TempDir(), "cache"), condition.NewRegistry())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.run(ctx) }()
	c.put("node", clusterType, "v", held("a"))
	parts.Eventually(t, time.Minute, "a file", func() bool {
		_, err := os.Stat(c.path)
		return err == nil
	})
	cancel()
	<-ended
}

// sealed returns the content of a cache file with the given records and a correct checksum.
func sealed(records []byte) []byte {
	text := append([]byte(fileHeader), records...)
	sum := sha256.Sum256(text)
	return append(text, sum[:]...)
}

func decodeFile(text []byte) ([]*snapshot, error) {
	records, err := fileFormat.Decode(text)
	if err != nil {
		return nil, err
	}
	return decodeNodes(records)
}

func FuzzDecodeFile(f *testing.F) {
	_, good := written(f)
	f.Add(good)
	f.Add([]byte(fileHeader))
	f.Fuzz(func(t *testing.T, text []byte) {
		nodes, err := decodeFile(text)
		if err != nil && nodes != nil {
			t.Errorf("%d nodes beside the error %v", len(nodes), err)
		}
		// With a correct checksum, the decoder also parses the records.
		_, _ = decodeFile(sealed(text))
	})
}

func FuzzParseResponse(f *testing.F) {
	r := &response{typeURL: clusterType, version: "v", nonce: "1", removed: []string{"b"},
		resources: []resource{{name: "a", version: "1", body: []byte("\n\x01a")}}}
	f.Add(r.encode(true), true)
	f.Add(r.encode(false), false)
	f.Fuzz(func(t *testing.T, text []byte, delta bool) {
		first, err := parseResponse(text, delta, false)
		if err != nil {
			return
		}
		again, err := parseResponse(first.encode(delta), delta, false)
		if err != nil {
			t.Fatalf("a response that was encoded cannot be parsed: %v", err)
		}
		if again.typeURL != first.typeURL || again.nonce != first.nonce ||
			len(again.resources) != len(first.resources) ||
			delta && len(again.removed) != len(first.removed) {
			t.Errorf("%+v became %+v", first, again)
		}
	})
}

func TestCache_SharesMapsThatAWatchDoesNotModify(t *testing.T) {
	for _, delta := range []bool{false, true} {
		first := &request{typeURL: "t", names: []string{"a", "b"}}
		w := newWatch(first, delta, nil)
		w.subscribe(first)
		var shared []map[string]resource
		for _, version := range []string{"1", "2"} {
			w.accept(&response{version: version, resources: []resource{
				{name: "a", version: version}, {name: "b", version: version}}})
			shared = append(shared, w.held)
		}
		w.subscribe(&request{unsubscribed: []string{"a", "b"}})
		for i, version := range []string{"1", "2"} {
			if len(shared[i]) != 2 || shared[i]["b"].version != version {
				t.Errorf("incremental %t: version %s became %v", delta, version, shared[i])
			}
		}
		if delta != (len(w.held) == 0) {
			t.Errorf("incremental %t: %v is held", delta, w.held)
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	f.Add([]byte("\"\x01t"), true)
	f.Fuzz(func(t *testing.T, text []byte, delta bool) {
		r, err := parseRequest(text, delta)
		if err != nil {
			return
		}
		w := newWatch(r, delta, held("a"))
		w.subscribe(r)
		w.sent(&response{typeURL: r.typeURL, nonce: "1", resources: []resource{{name: "a"}}}, 0, nil)
		w.acknowledge(&request{nonce: "1"})
		w.fromCache(held("a", "b"), "v")
		if next := w.resubscribe(); next != nil {
			if _, err := next.encode(delta); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestCache_OfAnEarlierAgent reads a cache file that an agent wrote before package recordfile
// existed.
func TestCache_OfAnEarlierAgent(t *testing.T) {
	board := condition.NewRegistry()
	c := OpenCache("testdata/cache-1", board)
	for _, want := range []struct {
		of               identity
		typeURL, version string
		held             map[string]resource
	}{
		{"node", clusterType, "v1", held("a", "b")},
		{"node", endpointType, "v2", held()},
		{"other", clusterType, "v4", held("c")},
	} {
		got, version := c.get(want.of, want.typeURL)
		if version != want.version || !reflect.DeepEqual(got, want.held) {
			t.Errorf("%s of %s: %q %v", want.typeURL, want.of, version, got)
		}
	}
	if len(board.Conditions()) > 0 {
		t.Errorf("%v", board.Conditions())
	}
}
