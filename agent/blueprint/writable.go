package blueprint

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
)

// testProgram answers whether a file can be written (test(1), of coreutils).
const testProgram = "/usr/bin/test"

// Writable refuses files that Envoy is to write and may not: by its user, or because its unit's
// sandbox forbids it. Only a runner that lives in the same sandbox can tell; Envoy itself would
// tell at its first line, when it is too late. Its error is config.Errors.
func Writable(ctx context.Context, runner envoy.Runner, loaded *config.Loaded) error {
	var errs config.Errors
	for _, file := range []struct{ key, path string }{
		{"envoy.outlier_log_path", loaded.Config.Envoy.OutlierLogPath},
		{"telemetry.access_log_file", loaded.Config.Telemetry.AccessLogFile},
	} {
		if file.path == "" || strings.HasPrefix(file.path, "/dev/") {
			continue
		}
		folder := filepath.Dir(file.path)
		// The file itself if it is there, else the folder that it would be made in.
		_, _, exit, err := runner.Run(ctx, testProgram, []string{"-w", file.path, "-o", "(", "!", "-e", file.path, "-a", "-w", folder, ")"})
		if err != nil {
			errs = append(errs, loaded.Fault(file.key, fmt.Sprintf("whether Envoy may write %s could not be found out: %v", file.path, err), "").Because(err))
		} else if exit != 0 {
			errs = append(errs, loaded.Fault(file.key, "Envoy may not write "+file.path, fmt.Sprintf("use a path in /var/log/outrider, or let its "+
				"user write %s and, under systemd, name it in ReadWritePaths=%s of a drop-in of outrider-envoy.service", folder, folder)))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	return nil
}
