package discovery

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/resource"
)

// TestRefusals_FileOfAnyState reads a file that is damaged, too large or from another version, and
// writes refusals of which one is too large. The next server has the others.
func TestRefusals_FileOfAnyState(t *testing.T) {
	state := func(node string, size int) refusedState {
		return refusedState{kind: kind{Node: node}, State: resource.State{
			Refusals: []resource.Refusal{{Key: resource.Key{Type: resource.ClusterType, Name: "a"},
				Version: "2", Accepted: resource.FromEncoded(resource.ClusterType, "a",
					make([]byte, size))}}}}
	}
	server := func(path string) *Server {
		s := &Server{options: Options{Refusals: path, Logger: slog.New(slog.DiscardHandler)}}
		s.refusals = s.readRefusals()
		return s
	}
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
