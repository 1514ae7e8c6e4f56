package blueprint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/bootstrap"
)

// Checker is how a configuration is checked. The zero Runner is the Envoy of this host, run by this
// process: as root with the rights of [envoy] user.
type Checker struct {
	Maker  Maker
	Runner envoy.Runner // runs Envoy where it is going to run, and as whom
	Folder string       // where Envoy may read what this process writes; only with a Runner

	// whom they will run as, where that is not as this process does; nil: not known
	Agent, Envoy *Reader
}

// Report is what a check found.
type Report struct {
	Files    []string      // of the configuration, as far as they were read
	Errors   config.Errors // what a start or a reload would refuse
	Warnings config.Errors // what is hardly meant, and what could not be checked here
	// the Envoy that the configuration names, or outrider-bootstrap, cannot be run: one of Errors
	Missing bool
	// what the check needs failed, which says nothing about the configuration: one of Errors
	Passing bool
}

func (r *Report) refuse(err error) {
	if many, ok := errors.AsType[config.Errors](err); ok {
		r.Errors = append(r.Errors, many...)
		return
	}
	r.Errors = append(r.Errors, &config.Error{Message: err.Error()})
}

func (r *Report) warn(loaded *config.Loaded, message, cure string) {
	r.Warnings = append(r.Warnings, loaded.Fault("", message, cure))
}

// checkTime bounds what a check runs of Envoy: three questions, and a validation. A thousand
// listeners take half a second.
const checkTime = 30 * time.Second

// Check does what a start does before Envoy runs, and has Envoy check the bootstrap, where there is
// one.
func Check(ctx context.Context, options config.Options, how Checker) Report {
	options.CheckOnly = true
	loaded, err := config.Load(options)
	if err != nil {
		report := Report{}
		report.refuse(err)
		return report
	}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	report := Report{Files: loaded.Files, Warnings: loaded.Warnings}
	place, err := how.place(loaded)
	if err != nil {
		report.refuse(err)
		return report
	}
	defer place.remove()
	how.readable(loaded, &report)
	binary := place.find(ctx, loaded, &report)
	if key, credential := secretElsewhere(loaded.Config); credential != "" {
		report.warn(loaded, fmt.Sprintf("the bootstrap was not checked: %s is %s, which only the unit has", key, credential), "")
		return report
	}
	plan, err := how.Maker.Make(ctx, loaded)
	if err != nil {
		if failed, ok := errors.AsType[*bootstrap.ProgramError](err); ok {
			report.Missing, report.Passing = report.Missing || failed.Missing, !failed.Missing
		}
		report.refuse(err)
		return report
	}
	if binary == nil {
		return report
	}
	if err := plan.Suits(binary); err != nil {
		report.refuse(err)
	}
	if place.envoys {
		if err := Writable(ctx, place.runner, loaded); err != nil {
			report.refuse(err)
		}
	}
	how.readableByEnvoy(plan, &report)
	if len(report.Errors) == 0 {
		place.validate(ctx, plan, binary, &report)
	}
	return report
}

// secretElsewhere is a key whose file is a credential of the unit's, of those that the bootstrap is
// made of.
func secretElsewhere(c *config.Config) (key, credential string) {
	for _, file := range []struct{ key, path string }{
		{customKey, c.Envoy.CustomConfigFile}, {templateKey, c.Envoy.TemplateFile}, {overrideKey, c.Envoy.BootstrapOverride},
		{"tracing.access_token_file", c.Tracing.AccessTokenFile},
	} {
		if config.IsCredential(file.path) {
			return file.key, file.path
		}
	}
	return "", ""
}

// place is where a check runs Envoy.
type place struct {
	runner envoy.Runner
	folder string
	envoys bool // Envoy runs as the user that it is going to run as
	remove func()
}

func (c Checker) place(loaded *config.Loaded) (*place, error) {
	if c.Runner != nil {
		return &place{runner: c.Runner, folder: c.Folder, envoys: true, remove: func() {}}, nil
	}
	other, err := EnvoyUser(loaded.Config)
	if err != nil {
		return nil, config.Errors{loaded.Fault("envoy.user", err.Error(), "")}
	}
	folder, err := os.MkdirTemp("", "outrider-check-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the bootstrap that is checked: %w", err)
	}
	p := &place{runner: envoy.Local{}, folder: folder, remove: func() { _ = os.RemoveAll(folder) }}
	if other != nil {
		p.runner, p.envoys = envoy.Local{User: &syscall.Credential{Uid: other.UID, Gid: other.GID}}, true
		err = os.Chown(folder, int(other.UID), int(other.GID))
	}
	if err != nil {
		p.remove()
		return nil, fmt.Errorf("let Envoy's user read the bootstrap that is checked: %w", err)
	}
	return p, nil
}

// find looks for Envoy and asks what it is; nil: there is none.
func (p *place) find(ctx context.Context, loaded *config.Loaded, report *Report) *envoy.Binary {
	path, err := envoy.Find(loaded.Config.Envoy.Binary)
	var binary *envoy.Binary
	if err == nil {
		binary, err = envoy.Inspect(ctx, p.runner, path)
	}
	if err != nil {
		report.Missing = true
		cure := "name an Envoy that can be run, or remove the key"
		if loaded.Config.Envoy.Binary == "" {
			cure = "" // the error has it
		}
		report.Errors = append(report.Errors, loaded.Fault("envoy.binary", err.Error(), cure))
		return nil
	}
	return binary
}

// validate has Envoy check the bootstrap.
func (p *place) validate(ctx context.Context, plan *Blueprint, binary *envoy.Binary, report *Report) {
	for _, file := range plan.files {
		if _, err := os.Stat(file); err != nil {
			report.warn(plan.loaded, fmt.Sprintf("Envoy itself did not check the bootstrap: %s cannot be read (%v)", file, err), "a start waits for it as long as [identity] wait says")
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
		if argument, why, ok := envoy.RefusedArgument(append(stdout, stderr...)); ok && len(plan.Command.ExtraArgs) > 0 {
			report.Errors = append(report.Errors, plan.loaded.Fault(extraArgsKey, argument+": "+why, "correct it, or remove it"))
			return
		}
		complaint := strings.ReplaceAll(envoy.Complaint(append(stdout, stderr...)), path, "the bootstrap")
		report.Errors = append(report.Errors, plan.fault("Envoy does not accept the bootstrap: "+complaint))
	}
}

// write puts the bootstrap where Envoy may read it, and nobody else whose business it is not.
func (p *place) write(plan *Blueprint) (path string, err error) {
	rendered, err := plan.Render(filepath.Join(p.folder, "admin.sock"))
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

// share lets Envoy read a file: by the group of the folder it is in, or as its owner.
func (p *place) share(file *os.File) error {
	if local, ok := p.runner.(envoy.Local); ok {
		if local.User == nil {
			return nil
		}
		return file.Chown(int(local.User.Uid), int(local.User.Gid))
	}
	return file.Chmod(0o640)
}
