package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"outrider.org/outrider/agent/config"
)

// testProgram answers whether a file can be written (test(1), of coreutils).
const testProgram = "/usr/bin/test"

// checkWritable refuses files that Envoy is to write and may not: by its user, or because its unit's sandbox forbids it. Only the
// keeper can tell, who lives in the same sandbox; Envoy itself would tell at its first line, when it is too late.
func (m *specMaker) checkWritable(ctx context.Context, c *config.Config) error {
	for _, file := range []struct{ key, path string }{
		{"envoy.outlier_log_path", c.Envoy.OutlierLogPath},
		{"telemetry.access_log_file", c.Telemetry.AccessLogFile},
	} {
		if file.path == "" || strings.HasPrefix(file.path, "/dev/") {
			continue
		}
		folder := filepath.Dir(file.path)
		// The file itself if it is there, else the folder that it would be made in.
		_, _, exit, err := m.runner.Run(ctx, testProgram, []string{"-w", file.path, "-o", "(", "!", "-e", file.path, "-a", "-w", folder, ")"})
		if err != nil {
			return fmt.Errorf("%s: whether Envoy may write %s could not be found out: %w", file.key, file.path, err)
		}
		if exit != 0 {
			return fmt.Errorf("%s: Envoy may not write %s: use a path in /var/log/outrider, or let its user write %s and, under systemd, "+
				"name it in ReadWritePaths=%s of a drop-in of outrider-envoy.service", file.key, file.path, folder, folder)
		}
	}
	return nil
}
