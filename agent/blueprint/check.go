package blueprint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/bootstrap"
)

// CheckOptions configures Check. Without a Runner, Check runs the Envoy of this host as a child
// process, as [envoy] user if this process is root.
type CheckOptions struct {
	Builder       Builder
	Runner        envoy.Runner // runs Envoy as the user and in the sandbox of a real start
	ValidationDir string       // directory shared with Envoy; only with a Runner

	// AgentUser and EnvoyUser are the users of these processes in a real start; nil: their access
	// to files is not checked.
	AgentUser, EnvoyUser *UserAccess
}

// CheckReport is the result of a check.
type CheckReport struct {
	Files    []string      // configuration files that were read
	Errors   config.Errors // reasons for a start or a reload to fail
	Warnings config.Errors // likely mistakes, and notes on skipped checks
	// RequiredProgramMissing reports that one of Errors is a missing Envoy or outrider-bootstrap.
	RequiredProgramMissing bool
	// TransientFailure reports that one of Errors is a failure of the check itself, which may
	// succeed when repeated.
	TransientFailure bool
}

func (r *CheckReport) refuse(err error) {
	if many, ok := errors.AsType[config.Errors](err); ok {
		r.Errors = append(r.Errors, many...)
		return
	}
	r.Errors = append(r.Errors, &config.Error{Message: err.Error()})
}

func (r *CheckReport) warn(loaded *config.Loaded, message, fix string) {
	r.Warnings = append(r.Warnings, loaded.KeyError("", message, fix))
}

// checkTime bounds the runs of Envoy in a check: three for Inspect, one for validation.
const checkTime = 30 * time.Second

// Check performs the steps of a start without starting Envoy. If an Envoy is installed, it
// validates the bootstrap.
func Check(ctx context.Context, options config.Options, checks CheckOptions) CheckReport {
	options.CheckOnly = true
	loaded, err := config.Load(options)
	if err != nil {
		report := CheckReport{}
		report.refuse(err)
		return report
	}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	report := CheckReport{Files: loaded.Files, Warnings: loaded.Warnings}
	environment, err := checks.environment(loaded)
	if err != nil {
		report.refuse(err)
		return report
	}
	defer environment.remove()
	checks.readable(loaded, &report)
	if err := CheckExecProbe(loaded, nil, options.RunsInUnit); err != nil {
		report.Errors = append(report.Errors, err)
	}
	var binary *envoy.Binary
	if loaded.Config.Envoy.Enabled {
		binary = environment.find(ctx, loaded, &report)
	}
	if key, credential := secretElsewhere(loaded.Config); credential != "" {
		report.warn(loaded,
			fmt.Sprintf("the bootstrap was not checked: %s is %s, which only the unit has", key,
				credential), "")
		return report
	}
	if loaded.Config.Discovery.DynamicBootstrap && checks.Builder.FetchUpstreamBootstrap == nil {
		loaded.Config.Discovery.DynamicBootstrap = false
		report.warn(loaded, "the bootstrap of the upstream server was not checked: only a running "+
			"agent requests it", "")
	}
	plan, err := checks.Builder.Build(ctx, loaded)
	if err != nil {
		if failed, ok := errors.AsType[*bootstrap.RenderProgramError](err); ok {
			report.RequiredProgramMissing, report.TransientFailure = report.RequiredProgramMissing ||
				failed.Missing, !failed.Missing
		}
		report.refuse(err)
		return report
	}
	if _, err := plan.GRPCBootstrap(); err != nil && checks.AgentUser == nil {
		report.refuse(err)
	}
	if binary == nil {
		return report
	}
	if err := plan.CheckBinary(binary); err != nil {
		report.refuse(err)
	}
	if environment.envoys {
		if err := CheckEnvoyCanWrite(ctx, environment.runner, loaded); err != nil {
			report.refuse(err)
		}
	}
	checks.readableByEnvoy(plan, &report)
	if len(report.Errors) == 0 {
		environment.validate(ctx, plan, binary, &report)
	}
	return report
}

// secretElsewhere returns the first configuration key that names a systemd credential as a file of
// the bootstrap, and the credential. Only processes of the agent's unit can read credentials.
func secretElsewhere(c *config.Config) (key, credential string) {
	for _, file := range []struct{ key, path string }{
		{customKey, c.Envoy.CustomConfigFile}, {templateKey, c.Envoy.TemplateFile},
		{overrideKey, c.Envoy.BootstrapOverride},
		{"tracing.access_token_file", c.Tracing.AccessTokenFile},
	} {
		if config.IsCredential(file.path) {
			return file.key, file.path
		}
	}
	return "", ""
}

// environment is the environment in which a check runs Envoy.
type environment struct {
	runner envoy.Runner
	folder string
	envoys bool // whether runner runs Envoy as the user of a real start
	remove func()
}

func (c CheckOptions) environment(loaded *config.Loaded) (*environment, error) {
	if c.Runner != nil {
		return &environment{runner: c.Runner, folder: c.ValidationDir, envoys: true,
			remove: func() {}}, nil
	}
	other, err := EnvoyUser(loaded.Config)
	if err != nil {
		return nil, config.Errors{loaded.KeyError("envoy.user", err.Error(), "")}
	}
	folder, err := os.MkdirTemp("", "outrider-check-")
	if err != nil {
		return nil, fmt.Errorf("create a directory for Envoy's validation of the bootstrap: %w",
			err)
	}
	p := &environment{runner: envoy.LocalRunner{}, folder: folder, remove: func() { _ = os.RemoveAll(folder) }}
	if other != nil {
		p.runner, p.envoys = envoy.LocalRunner{User: other}, true
		err = os.Chown(folder, int(other.Uid), int(other.Gid))
	}
	if err != nil {
		p.remove()
		return nil, fmt.Errorf("cannot make the bootstrap file readable for Envoy's validation: %w",
			err)
	}
	return p, nil
}

// find finds and inspects the Envoy binary. It returns nil and adds to report if that fails.
func (p *environment) find(ctx context.Context, loaded *config.Loaded,
	report *CheckReport) *envoy.Binary {
	path, err := envoy.Find(loaded.Config.Envoy.Binary)
	var binary *envoy.Binary
	if err == nil {
		binary, err = envoy.Inspect(ctx, p.runner, path)
	}
	if err != nil {
		report.RequiredProgramMissing = true
		fix := "name an Envoy that can be run, or remove the key"
		if loaded.Config.Envoy.Binary == "" {
			fix = "" // the error contains the fix
		}
		report.Errors = append(report.Errors, loaded.KeyError("envoy.binary", err.Error(), fix))
		return nil
	}
	return binary
}

// validate validates the bootstrap with Envoy and adds the result to report.
func (p *environment) validate(
	ctx context.Context, plan *Blueprint, binary *envoy.Binary, report *CheckReport,
) {
	for _, file := range plan.files {
		if _, err := os.Stat(file); err != nil {
			report.warn(plan.loaded,
				fmt.Sprintf("Envoy itself did not check the bootstrap: %s cannot be read (%v)",
					file, err), "a start waits for it as long as [identity] wait says")
			return
		}
	}
	path, err := p.write(plan)
	if err != nil {
		report.warn(plan.loaded, "Envoy itself did not check the bootstrap: "+err.Error(), "")
		return
	}
	defer func() { _ = os.Remove(path) }()
	command := plan.Command
	command.ConfigFile = path
	stdout, stderr, exit, err := p.runner.Run(ctx, binary.Path, command.ValidateArgs(binary))
	switch {
	case err != nil:
		report.warn(plan.loaded, "Envoy itself did not check the bootstrap: "+err.Error(), "")
	case exit != 0:
		if argument, why, ok := envoy.RefusedArgument(append(stdout, stderr...)); ok &&
			len(plan.Command.ExtraArgs) > 0 {
			report.Errors = append(report.Errors,
				plan.loaded.KeyError(extraArgsKey, argument+": "+why,
					"correct it, or remove it"))
			return
		}
		complaint := strings.ReplaceAll(envoy.ValidationError(append(stdout, stderr...)), path,
			"the bootstrap")
		report.Errors = append(report.Errors,
			plan.fault("Envoy does not accept the bootstrap: "+complaint))
	}
}

// write writes the bootstrap to a file that only this process and Envoy can read.
func (p *environment) write(plan *Blueprint) (path string, err error) {
	rendered, err := plan.RenderBootstrap(filepath.Join(p.folder, "admin.sock"))
	if err != nil {
		return "", err
	}
	file, err := os.CreateTemp(p.folder, ".envoy-check-*.json")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := file.Write(rendered); err != nil {
		return file.Name(), err
	}
	return file.Name(), p.share(file)
}

// share lets Envoy read a file: through the group of the file's directory, or as the file's owner.
func (p *environment) share(file *os.File) error {
	if local, ok := p.runner.(envoy.LocalRunner); ok {
		if local.User == nil {
			return nil
		}
		return file.Chown(int(local.User.Uid), int(local.User.Gid))
	}
	return file.Chmod(0o640)
}
