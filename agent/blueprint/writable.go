package blueprint

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
)

// testProgram is test(1) of coreutils. It checks whether a file is writable.
const testProgram = "/usr/bin/test"

// CheckEnvoyCanWrite returns config.Errors for files that Envoy must write but cannot, because of
// its user's rights or the sandbox of its unit. runner must run in that sandbox. Without this check
// Envoy would start and fail only at its first write.
func CheckEnvoyCanWrite(ctx context.Context, runner envoy.Runner, loaded *config.Loaded) error {
	var errs config.Errors
	for _, file := range []struct{ key, path string }{
		{"envoy.outlier_log_path", loaded.Config.Envoy.OutlierLogPath},
		{"telemetry.access_log_file", loaded.Config.Telemetry.AccessLogFile},
	} {
		if file.path == "" || strings.HasPrefix(file.path, "/dev/") {
			continue
		}
		folder := filepath.Dir(file.path)
		// testProgram checks the file if it exists, else the directory in which Envoy would create
		// it.
		_, _, exit, err := runner.Run(ctx, testProgram, []string{"-w", file.path, "-o", "(", "!",
			"-e", file.path, "-a", "-w", folder, ")"})
		if err != nil {
			errs = append(errs,
				loaded.KeyError(file.key,
					fmt.Sprintf("whether Envoy may write %s could not be found out: %v", file.path,
						err), "").WithCause(err))
		} else if exit != 0 {
			errs = append(errs, loaded.KeyError(file.key, "Envoy may not write "+file.path,
				fmt.Sprintf("use a path in /var/log/outrider, or let its "+
					"user write %s and, under systemd, name it in ReadWritePaths=%s of a drop-in of "+
					"outrider-envoy.service", folder, folder)))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	return nil
}
