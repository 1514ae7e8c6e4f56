package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"outrider.org/outrider/agent/epoch/record"
)

// A replaced file is read again, because paths are reused. The nodes are incomplete if the file of
// a running epoch is missing. The node of an exited epoch is not returned.
func TestEpochNodes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "envoy-rev1.json")
	epochs := []record.Epoch{{BootstrapPath: path},
		{BootstrapPath: "/none", Exited: time.Now()}}
	nodes := &epochNodes{epochs: func() []record.Epoch { return epochs }}
	if found, all := nodes.all(); len(found) > 0 || all {
		t.Errorf("without the file: %v, %t", found, all)
	}
	for _, id := range []string{"a", "b"} {
		next := path + ".new"
		if err := os.WriteFile(next, []byte(`{"node": {"id": "`+id+`", "metadata": {"X": 1}}, `+
			`"admin": {}}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, path); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			found, all := nodes.all()
			if len(found) != 1 || !all || found[0].Id != id ||
				found[0].Metadata.Fields["X"].GetNumberValue() != 1 {
				t.Errorf("%s: %v, %t", id, found, all)
			}
		}
	}
	epochs[0].Exited = time.Now()
	if found, all := nodes.all(); len(found) > 0 || !all {
		t.Errorf("after its end: %v, %t", found, all)
	}
}
