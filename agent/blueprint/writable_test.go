package blueprint

import (
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
)

func TestFilesThatEnvoyMayNotWriteAreRefused(t *testing.T) {
	folder := t.TempDir()
	for _, c := range []struct {
		name, path, says string
	}{
		{"none", "", ""},
		{"a stream", "/dev/stdout", ""},
		{"a new file", filepath.Join(folder, "outlier.log"), ""},
		{"a missing folder", filepath.Join(folder, "missing", "outlier.log"),
			"envoy.outlier_log_path: Envoy may not write " + filepath.Join(folder, "missing")},
	} {
		err := CheckEnvoyCanWrite(t.Context(), envoy.LocalRunner{},
			&config.Loaded{Config: &config.Config{Envoy: config.Envoy{OutlierLogPath: c.path}}})
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
