package recordfile

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var format = Format{Header: "test 1\n", MaxBytes: 100}

// file returns a file with a header, a body and the right checksum.
func file(header, body string) string {
	sum := sha256.Sum256([]byte(header + body))
	return header + body + string(sum[:])
}

func TestRead_FilesThatCannotBeUsed(t *testing.T) {
	good := file(format.Header, "\x03kab\x01n")
	for name, test := range map[string]struct{ text, problem string }{
		"good":       {good, ""},
		"no records": {file(format.Header, ""), ""},
		"empty":      {"", "the file has another format or version"},
		"another version": {file("test 2\n", "\x03kab"),
			"the file has another format or version"},
		"header only":                 {format.Header, "truncated"},
		"truncated":                   {good[:len(good)-1], "checksum"},
		"more at the end":             {good + "x", "checksum"},
		"changed":                     {strings.Replace(good, "ab", "aB", 1), "checksum"},
		"a record beyond the end":     {file(format.Header, "\x04kab"), "wrong length"},
		"a record without kind":       {file(format.Header, "\x00"), "wrong length"},
		"an unfinished length":        {file(format.Header, "\x80"), "wrong length"},
		"a length of more than 2^64":  {file(format.Header, strings.Repeat("\xff", 11)), "wrong length"},
		"a length that would wrap":    {file(format.Header, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01k"), "wrong length"},
		"as large as possible":        {file(format.Header, "\x5bk"+strings.Repeat("x", 90)), ""},
		"larger by one than possible": {file(format.Header, "\x5ck"+strings.Repeat("x", 92)), "more than"},
	} {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		records, err := format.Read(path)
		switch {
		case (err == nil) != (test.problem == ""):
			t.Errorf("%s: %d records, error %v", name, len(records), err)
		case err != nil && (!strings.Contains(err.Error(), test.problem) ||
			!strings.Contains(err.Error(), path) || len(records) > 0):
			t.Errorf("%s: %d records, error %v, want %s", name, len(records), err, test.problem)
		}
	}
	if records, err := format.Read(filepath.Join(t.TempDir(), "none")); err != nil || records != nil {
		t.Errorf("no file: %v, %v", records, err)
	}
}

func TestWrite_ReplacesTheFileOrLeavesIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("another"), 0o644); err != nil {
		t.Fatal(err)
	}
	want := []Record{{'k', []byte("ab")}, {'n', nil}, {'k', make([]byte, 50)}}
	for range 2 {
		if err := format.Write(path, slices.Values(want)); err != nil {
			t.Fatal(err)
		}
		got, err := format.Read(path)
		if d := cmp.Diff(want, got, cmp.Transformer("text", func(b []byte) string { return string(b) })); d != "" ||
			err != nil {
			t.Errorf("%v (-want +got):\n%s", err, d)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
			t.Errorf("mode: %v, %v", info.Mode(), err)
		}
	}
	large := append(slices.Clone(want), Record{'k', make([]byte, 50)}, Record{'n', nil})
	if err := format.Write(path, slices.Values(large)); err == nil {
		t.Error("a file that is too large is written")
	}
	if got, err := format.Read(path); len(got) != len(want) || err != nil {
		t.Errorf("after a failed write: %d records, %v", len(got), err)
	}
	fitting, without := format.DropExcess(large)
	if without != 1 || len(fitting) != 4 || format.Write(path, slices.Values(fitting)) != nil {
		t.Errorf("%d records fit, without %d", len(fitting), without)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// FuzzDecode checks for arbitrary content that Decode either returns an error, or records whose
// encoding is that content.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(file(format.Header, "\x03kab\x01n")))
	f.Add([]byte(file(format.Header, "\x80\x80")))
	f.Add([]byte(format.Header))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, content := range [][]byte{text, []byte(file(format.Header, string(text)))} {
			records, err := format.Decode(content)
			if err != nil {
				continue
			}
			var body []byte
			for _, r := range records {
				body = append(append(body, r.head()...), r.Text...)
			}
			again, err := format.Decode([]byte(file(format.Header, string(body))))
			same := slices.EqualFunc(records, again, func(x, y Record) bool {
				return x.Kind == y.Kind && bytes.Equal(x.Text, y.Text)
			})
			if err != nil || !same {
				t.Errorf("%d records, then %d: %v", len(records), len(again), err)
			}
		}
	})
}
