package watch

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAwait_ReportsMissingFiles(t *testing.T) {
	dir := tempDir(t)
	here, one, two := dir+"/here", dir+"/later/one", dir+"/later/two"
	write(t, here, "")
	var told [][]string
	left, err := AwaitFiles(t.Context(), []string{one, here, two, one}, patience,
		func(paths []string) {
			told = append(told, paths)
			switch len(told) {
			case 1:
				mkdir(t, dir+"/later")
				write(t, one, "")
			case 2:
				write(t, two, "")
			}
		})
	if err != nil || left != nil {
		t.Errorf("left %q, error %v", left, err)
	}
	if diff := cmp.Diff([][]string{{one, two}, {two}}, told); diff != "" {
		t.Errorf("missing changes (-want +got):\n%s", diff)
	}
}

func TestAwait_EndsWithTimeAndContext(t *testing.T) {
	dir := tempDir(t)
	for _, wait := range []time.Duration{0, 50 * time.Millisecond} {
		left, err := AwaitFiles(t.Context(), []string{dir, dir + "/never"}, wait, nil)
		if diff := cmp.Diff([]string{dir + "/never"}, left); diff != "" || err != nil {
			t.Errorf("after %v: error %v, left (-want +got):\n%s", wait, err, diff)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := AwaitFiles(ctx, []string{dir + "/never"}, time.Hour, func([]string) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestDigest(t *testing.T) {
	dir := tempDir(t)
	mkdir(t, dir+"/d/sub")
	write(t, dir+"/a", "1")
	write(t, dir+"/d/x.pem", "1")
	write(t, dir+"/d/ignored", "1")
	paths := []string{dir + "/a", dir + "/b", dir + "/d/..."}
	seen := map[string]string{}
	same, err := DigestFiles(paths, ".pem")
	must(t, err)
	steps := []struct {
		name    string
		do      func()
		changes bool
	}{
		{"touched", func() { now := time.Now(); must(t, os.Chtimes(dir+"/a", now, now)) }, false},
		{"an ignored file", func() { write(t, dir+"/d/ignored", "2") }, false},
		{"a file", func() { write(t, dir+"/a", "2") }, true},
		{"a file that was missing", func() { write(t, dir+"/b", "") }, true},
		{"a file in the directory", func() { write(t, dir+"/d/sub/y.pem", "2") }, true},
		{"a file's name", func() { rename(t, dir+"/d/sub/y.pem", dir+"/d/sub/z.pem") }, true},
		{"the directory", func() { remove(t, dir+"/d") }, true},
	}
	for _, step := range steps {
		seen[same] = step.name
		step.do()
		digest, err := DigestFiles([]string{paths[2], paths[1], paths[0], paths[1]}, ".pem")
		must(t, err)
		if before, known := seen[digest]; known == step.changes {
			t.Errorf("%s: changed %v (same as before %q)", step.name, !known, before)
		}
		same = digest
	}
	must(t, mkfifo(dir+"/fifo"))
	if _, err := DigestFiles([]string{dir + "/fifo"}); err == nil {
		t.Error("the digest of a FIFO is no error")
	}
}
