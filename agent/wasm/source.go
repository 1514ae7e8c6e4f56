package wasm

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"outrider.org/outrider/agent/readfile"
)

const (
	filePrefix     = "file://"
	maxSecretBytes = 64 << 10
)

// result is what a fetch returns.
type result struct {
	from Source
	code []byte
	err  error
}

// Path returns the path of a module in a file; ok is false for others.
func (s Source) Path() (path string, ok bool) {
	if !strings.HasPrefix(s.URL, filePrefix) {
		return "", false
	}
	if parsed, err := url.Parse(s.URL); err == nil && parsed.Path != "" {
		return parsed.Path, true
	}
	return strings.TrimPrefix(s.URL, filePrefix), true
}

// path returns the path of a module in a file, "" for others.
func (s Source) path() string {
	path, _ := s.Path()
	return path
}

// fetch fetches the module of a source. It returns when ctx ends, even if a file system hangs.
func (f *Fetcher) fetch(ctx context.Context, from Source) result {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	r := result{from: from}
	done := f.fetches.DoChan(fmt.Sprintf("%q", from), func() (any, error) {
		return f.get(ctx, from)
	})
	select {
	case fetched := <-done:
		if r.err = fetched.Err; r.err == nil {
			r.code = fetched.Val.(Module).Code
		}
	case <-ctx.Done():
		r.err = ctx.Err()
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && r.err != nil {
		r.err = fmt.Errorf("no module received within %v", fetchTime)
	}
	if r.err != nil {
		r.err = shorten(r.err)
	}
	return r
}

// get fetches the module of a source and verifies its sum and format.
func (f *Fetcher) get(ctx context.Context, from Source) (found Module, err error) {
	var secret []byte
	path := from.path()
	switch {
	case path != "":
		if found.Code, err = readfile.Read(path, MaxBytes); err == nil {
			found.SHA256Sums = []string{sumOf(found.Code)}
		}
	case from.SecretFile != "":
		if secret, err = readfile.Read(from.SecretFile, maxSecretBytes); err != nil {
			return found, fmt.Errorf("cannot read the image pull secret: %w", err)
		}
		fallthrough
	default:
		found, err = f.client.Fetch(ctx, from.URL, string(secret))
	}
	switch {
	case err != nil:
		return found, err
	case !found.HasSHA256(from.SHA256):
		// Only the log contains the actual sum: whoever configures a module must not learn from the
		// error what an address serves.
		f.options.Logger.Warn("Wasm module does not match its configured sha256", "url",
			RedactURL(from.URL), "sha256", strings.Join(found.SHA256Sums,
				", "), "want", from.SHA256)
		return found, fmt.Errorf("%s does not have the SHA-256 %s; its actual SHA-256 "+
			"is in the log", from.URL, from.SHA256)
	case !found.IsWasm():
		return found, fmt.Errorf("%s is not a Wasm module", from.URL)
	case found.isCutOff():
		return found, fmt.Errorf("%s is truncated", from.URL)
	}
	return found, nil
}
