package envoy

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// InspectCached is Inspect with a cache file, since the three runs of Envoy would dominate the time
// of a start. The result is reused until the binary changes. If the cache cannot be written, that
// is logged.
func InspectCached(
	ctx context.Context, runner Runner, path, cache string, log *slog.Logger,
) (*Binary, error) {
	if known := ReadCachedBinary(path, cache); known != nil {
		return known, nil
	}
	found, err := Inspect(ctx, runner, path)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(found)
	if err == nil {
		temporary := renameio.WithTempDir(filepath.Dir(cache))
		err = renameio.WriteFile(cache, text, 0o600, temporary)
	}
	if err != nil {
		log.Warn("cannot cache Envoy's version and flags; the next start takes longer",
			"error", err)
	}
	return found, nil
}

// ReadCachedBinary returns the cached result for the binary at path, nil if there is none.
func ReadCachedBinary(path, cache string) *Binary {
	var known Binary
	text, err := os.ReadFile(cache)
	if err != nil || json.Unmarshal(text, &known) != nil || known.Path != path {
		return nil
	}
	if identity, err := Identify(path); err != nil || known.Identity != identity {
		return nil
	}
	return &known
}
