package blueprint

import (
	"errors"
	"io/fs"
	"os"
	"slices"

	"outrider.org/outrider/agent/config"
)

// readable reports configuration files that the agent's user cannot read, although this process
// can. Files that a start does not need cause warnings.
func (c CheckOptions) readable(loaded *config.Loaded, report *CheckReport) {
	for _, path := range slices.Concat(loaded.Files, loaded.Dirs) {
		if why := c.AgentUser.ReadDenialReason(path); why != "" {
			wrong := &config.Error{Position: config.Position{File: path}, Message: why}
			report.Errors = append(report.Errors, wrong)
		}
	}
	for _, file := range loaded.FilesOfKeys() {
		if why := c.AgentUser.ReadDenialReason(file.Path); why != "" {
			report.Errors = append(report.Errors, loaded.KeyError(file.Key, why, ""))
		}
	}
	if c.AgentUser != nil {
		for _, path := range SecretFiles(loaded.Config) {
			if why := c.AgentUser.ReadableByOthersReason(path); why != "" {
				report.warn(loaded, why, "")
			}
		}
	}
	if c.AgentUser.IsUncheckable() || c.EnvoyUser.IsUncheckable() {
		report.warn(loaded, "whether the users of the units can read the files was not checked",
			"run the check as root")
	}
	const files = "discovery.files"
	for _, path := range loaded.Config.Discovery.Files {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			missing := loaded.KeyError(files, path+" does not exist", "create it, or remove it")
			report.Warnings = append(report.Warnings, missing)
		} else if why := c.AgentUser.ReadDenialReason(path); why != "" {
			report.Warnings = append(report.Warnings, loaded.KeyError(files, why, ""))
		}
	}
}

// readableByEnvoy reports files that Envoy's user cannot read at its start.
func (c CheckOptions) readableByEnvoy(plan *Blueprint, report *CheckReport) {
	byKey := map[string]string{}
	for _, file := range plan.loaded.FilesOfKeys() {
		byKey[file.Path] = file.Key
	}
	for _, path := range plan.files {
		why := c.EnvoyUser.ReadDenialReason(path)
		switch key, named := byKey[path]; {
		case why == "":
		case named:
			report.Errors = append(report.Errors, plan.loaded.KeyError(key, why, ""))
		default:
			report.Errors = append(report.Errors, plan.fault(why))
		}
	}
}
