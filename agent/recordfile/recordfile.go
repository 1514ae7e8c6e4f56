// Package recordfile stores records in a file of limited size, which is replaced atomically and has
// a checksum.
//
// The file is a header, the records with their length before them, and the SHA-256 of all that. The
// first byte of a record is its kind.
package recordfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path/filepath"

	"github.com/google/renameio/v2"

	"outrider.org/outrider/agent/readfile"
)

// Format describes a kind of file: its header, and its maximum size without the checksum.
type Format struct {
	Header   string // one line that contains the version of the format
	MaxBytes int
}

// Record is a record of a file.
type Record struct {
	Kind byte
	Text []byte
}

// head returns the bytes before the text of a record: the length of kind and text, and the kind.
func (r Record) head() []byte {
	return append(binary.AppendUvarint(nil, uint64(len(r.Text)+1)), r.Kind)
}

// DropExcess omits the records that would make a file too large. It returns the other records and
// the number of omitted ones.
func (f Format) DropExcess(records []Record) (fitting []Record, dropped int) {
	total := len(f.Header)
	for _, r := range records {
		if size := len(r.head()) + len(r.Text); total+size <= f.MaxBytes {
			fitting, total = append(fitting, r), total+size
		}
	}
	return fitting, len(records) - len(fitting)
}

// Write replaces a file atomically. Its mode is 0600.
func (f Format) Write(path string, records iter.Seq[Record]) (err error) {
	file, err := renameio.NewPendingFile(path, renameio.WithPermissions(0o600),
		renameio.WithTempDir(filepath.Dir(path)))
	if err != nil {
		return fmt.Errorf("create %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, file.Cleanup()) }()
	sum := sha256.New()
	out := io.MultiWriter(file, sum)
	if _, err := io.WriteString(out, f.Header); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	total := len(f.Header)
	for r := range records {
		head := r.head()
		if total += len(head) + len(r.Text); total > f.MaxBytes {
			return fmt.Errorf("write %s: the records have more than %d MB", path, f.MaxBytes>>20)
		}
		for _, part := range [][]byte{head, r.Text} {
			if _, err := out.Write(part); err != nil {
				return fmt.Errorf("write %s: %w", path, err)
			}
		}
	}
	if _, err := file.Write(sum.Sum(nil)); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := file.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	return nil
}

// Read returns the records of a file, none if there is no file. The records share one buffer.
func (f Format) Read(path string) ([]Record, error) {
	file, err := readfile.OpenRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > int64(f.MaxBytes+sha256.Size) {
		return nil, fmt.Errorf("%s: the file has more than %d MB", path, f.MaxBytes>>20)
	}
	text := make([]byte, info.Size()) // io.ReadAll would allocate up to twice as much
	if _, err := io.ReadFull(file, text); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	records, err := f.Decode(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return records, nil
}

// Decode returns the records of a file's content.
func (f Format) Decode(text []byte) ([]Record, error) {
	body, ok := bytes.CutPrefix(text, []byte(f.Header))
	if !ok {
		return nil, errors.New("the file has another format or version")
	}
	end := len(text) - sha256.Size
	if end < len(f.Header) {
		return nil, errors.New("the file is truncated")
	}
	if sum := sha256.Sum256(text[:end]); !bytes.Equal(sum[:], text[end:]) {
		return nil, errors.New("the checksum of the file is wrong")
	}
	body = body[:len(body)-sha256.Size]
	var records []Record
	for len(body) > 0 {
		length, n := binary.Uvarint(body)
		if n <= 0 || length == 0 || length > uint64(len(body)-n) {
			return nil, errors.New("a record has the wrong length")
		}
		records = append(records, Record{body[n], body[n+1 : n+int(length)]})
		body = body[n+int(length):]
	}
	return records, nil
}
