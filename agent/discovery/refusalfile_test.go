package discovery

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/recordfile"
	"outrider.org/outrider/agent/resource"
)

// refusedBy returns the refusals of proxies with a node. size is the size in bytes of the last
// accepted version.
func refusedBy(node string, size int) refusedState {
	return refusedState{kind: kind{Node: node}, RefusalState: resource.RefusalState{Refused: []resource.RefusedVersion{{
		Resource:     &resource.Resource{Type: resource.ClusterType, Name: "a", Version: "2"},
		LastAccepted: resource.FromEncoded(resource.ClusterType, "a", make([]byte, size))}}}}
}

// serverWithRefusals returns a server that has read a file of refusals.
func serverWithRefusals(path string) *Server {
	s := &Server{options: Options{RefusalFile: path, Logger: slog.New(slog.DiscardHandler)}}
	s.refusals = s.readRefusals()
	return s
}

// TestRefusals_FileOfAnyState reads a file of refusals that is damaged, too large or of another
// version, and then writes refusals, one of which is too large. The next server reads all others.
func TestRefusals_FileOfAnyState(t *testing.T) {
	state := refusedBy
	server := serverWithRefusals
	good := filepath.Join(t.TempDir(), "good")
	s := server(good)
	s.refusals = []refusedState{state("a", 1), state("b", 20<<20), state("c", 1)}
	if err := s.persistRefusals(); err != nil {
		t.Fatal(err)
	}
	s = server(good)
	if len(s.refusals) != 2 || s.refusals[0].Node+s.refusals[1].Node != "ac" {
		t.Fatalf("read: %d kinds", len(s.refusals))
	}
	text, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	for name, damaged := range map[string]string{
		"empty": "", "truncated": string(text[:len(text)-40]), "large": strings.Repeat("x", 17<<20),
		"another version": strings.Replace(string(text), " 1\n", " 2\n", 1),
	} {
		path := filepath.Join(t.TempDir(), "mesh-refusals")
		if err := os.WriteFile(path, []byte(damaged), 0o644); err != nil {
			t.Fatal(err)
		}
		s := server(path)
		if len(s.refusals) > 0 {
			t.Errorf("%s: read %v", name, s.refusals)
		}
		err := s.persistRefusals()
		info, _ := os.Stat(path)
		if got := fmt.Sprint(info.Size() < 100, info.Mode(), err); got != "true -rw------- <nil>" {
			t.Errorf("%s: the file is not replaced: %s", name, got)
		}
	}
}

// TestRefusals_FileWithAnInvalidEnvoyFilter reads EnvoyFilters that an earlier version of the agent
// stored. One of them is invalid for the current version: overrides that contain it are skipped,
// and all others are read.
func TestRefusals_FileWithAnInvalidEnvoyFilter(t *testing.T) {
	filter := func(field string) string {
		return `[{"apiVersion":"networking.istio.io/v1alpha3","kind":"EnvoyFilter","namespace":"a",` +
			`"name":"f","file":"f.yaml","line":1,"spec":{` + field + `:[]}}]`
	}
	valid, invalid := filter(`"configPatches"`), filter(`"earlierPatches"`)
	text, err := json.Marshal(refusedBy("a", 1))
	if err != nil {
		t.Fatal(err)
	}
	text = append(text[:len(text)-1], `,"overrides":[`+
		`{"name":"filters","filters":`+invalid+`},{"name":"refused","refused":`+invalid+`},`+
		`{"name":"valid","filters":`+valid+`,"refused":`+valid+`}]}`...)
	path := filepath.Join(t.TempDir(), "mesh-refusals")
	if err := refusalFormat.Write(path, slices.Values([]recordfile.Record{{Kind: kindRecord,
		Text: text}})); err != nil {
		t.Fatal(err)
	}
	s := serverWithRefusals(path)
	if len(s.refusals) != 1 || len(s.refusals[0].Refused) != 1 || len(s.refusals[0].Overrides) != 1 ||
		s.refusals[0].Overrides[0].Name != "valid" || len(s.refusals[0].Overrides[0].Filters) != 1 {
		t.Errorf("read: %+v", s.refusals)
	}
}

// asUser calls do with the file permissions of another user.
func asUser(t *testing.T, uid int, do func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Setfsuid(uid); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setfsuid(0) }()
	do()
}

// TestRefusals_FileThatCannotBeWritten stores refusals on a file system that is full or read-only,
// and in a folder of another user. The earlier file remains complete, and the refusals are stored
// once that is possible. A file of another user in the agent's folder is replaced.
func TestRefusals_FileThatCannotBeWritten(t *testing.T) {
	const nobody = 65534
	for name, test := range map[string]struct {
		options     string // options with which the file system is mounted
		folder      int    // owner of the folder
		breaks      func(folder string) error
		restores    func(folder string) error
		unreadable  bool
		wantFailure string
	}{
		"full": {"size=64k", nobody, func(folder string) error {
			err := os.WriteFile(folder+"/fill", make([]byte, 48<<10), 0o600)
			return err
		}, func(folder string) error { return os.Remove(folder + "/fill") }, false, "no space left"},
		"read-only": {"", nobody, func(folder string) error {
			return unix.Mount("", folder, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
		}, func(folder string) error { return unix.Mount("", folder, "", unix.MS_REMOUNT, "") }, false,
			"read-only file system"},
		"another user's folder": {"", 0, func(string) error { return nil },
			func(folder string) error { return os.Chown(folder, nobody, 0) }, false, "permission denied"},
		"another user's file": {"", nobody, func(folder string) error {
			return os.Chmod(folder+"/mesh-refusals", 0o600)
		}, func(string) error { return nil }, true, ""},
	} {
		folder := t.TempDir()
		if err := unix.Mount("tmpfs", folder, "tmpfs", 0, test.options); err != nil {
			t.Fatal("this test must run as root: ", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(folder, unix.MNT_DETACH) })
		path := filepath.Join(folder, "mesh-refusals")
		former := serverWithRefusals(path)
		former.refusals = []refusedState{refusedBy("former", 1)}
		before := former.persistRefusals()
		for _, err := range []error{before, os.Chmod(path, 0o644), os.Chmod(folder, 0o755),
			os.Chmod(filepath.Dir(folder), 0o755), os.Chown(folder, test.folder, 0), test.breaks(folder)} {
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		asUser(t, nobody, func() {
			s := serverWithRefusals(path)
			if test.unreadable != (len(s.refusals) == 0) {
				t.Errorf("%s: read %d kinds", name, len(s.refusals))
			}
			s.refusals = append(s.refusals, refusedBy("next", 30<<10))
			err := s.persistRefusals()
			if test.wantFailure == "" != (err == nil) ||
				err != nil && !strings.Contains(err.Error(), test.wantFailure) {
				t.Errorf("%s: %v, want %q", name, err, test.wantFailure)
			}
			again := serverWithRefusals(path)
			if got := again.refusals[0].Node; err != nil && got != "former" {
				t.Errorf("%s: the file of before has %q", name, got)
			}
			failed := make(chan error)
			// run as root: asUser changes the user of the current goroutine's thread only
			go func() { failed <- test.restores(folder) }()
			if err := cmp.Or(<-failed, s.persistRefusals()); err != nil {
				t.Errorf("%s: once it is possible: %v", name, err)
			}
			all := serverWithRefusals(path).refusals
			if len(all) == 0 || all[len(all)-1].Node != "next" {
				t.Errorf("%s: stored: %d kinds", name, len(all))
			}
			if entries, _ := os.ReadDir(folder); len(entries) != 1 {
				t.Errorf("%s: left: %v", name, entries)
			}
		})
	}
}
