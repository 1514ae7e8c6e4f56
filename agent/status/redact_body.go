package status

import (
	"bytes"
	"io"

	"outrider.org/outrider/agent/redact"
)

// redactedBody is a JSON body from which credentials are removed as it is read.
type redactedBody struct {
	source   io.ReadCloser
	redactor *redact.Redactor
	pending  bytes.Buffer // redacted text that was not read yet
	chunk    []byte
	err      error // from reading source
}

func newRedactedBody(source io.ReadCloser) *redactedBody {
	b := &redactedBody{source: source, chunk: make([]byte, 32<<10)}
	b.redactor = redact.New(&b.pending)
	return b
}

// Read implements io.Reader.
func (b *redactedBody) Read(p []byte) (int, error) {
	for b.pending.Len() == 0 {
		if b.err != nil {
			return 0, b.err
		}
		var n int
		n, b.err = b.source.Read(b.chunk)
		if _, err := b.redactor.Write(b.chunk[:n]); err != nil {
			return 0, err
		}
		if err := b.redactor.Flush(); err != nil {
			return 0, err
		}
	}
	return b.pending.Read(p)
}

// Close implements io.Closer.
func (b *redactedBody) Close() error { return b.source.Close() }
