package resolved

import (
	"bytes"
	"io"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

// spaces are a request that never ends.
type spaces struct{ read int }

// Read implements io.Reader.
func (s *spaces) Read(into []byte) (int, error) {
	if s.read += len(into); s.read > 8*maxRequestBytes {
		return 0, io.ErrNoProgress
	}
	return copy(into, bytes.Repeat([]byte(" "), len(into))), nil
}

func TestServe_BoundsRequests(t *testing.T) {
	host := parts.NewOtherHost(t)
	var sent spaces
	parts.InNamespace(t, host.Namespace(), func() {
		_ = Serve(struct {
			io.Reader
			io.Writer
		}{&sent, io.Discard})
	})
	if sent.read == 0 || sent.read > maxRequestBytes {
		t.Errorf("%d bytes of a request are read", sent.read)
	}
}
