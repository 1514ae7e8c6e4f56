package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/blueprint"
)

// unitTime bounds a request to systemd.
const unitTime = 2 * time.Second

// unitState is the state of a systemd unit; the zero value if it is unknown.
type unitState struct {
	Active string   // ActiveState=: failed, inactive, activating, …
	Masked bool     // the unit is masked: systemd refuses to start it
	Result string   // Result=: exit-code, signal, timeout, …
	Exit   string   // exit status or signal of the main process
	Status string   // STATUS= that the process sent with sd_notify
	User   string   // User=
	Groups []string // Group= and SupplementaryGroups=
	Path   string   // $PATH in Environment=; "": systemd's default
	Hidden []string // folders that the unit's sandboxing hides; see blueprint.UserAccess
}

// querySystemd returns the state of a unit; the zero value without systemd or without the unit.
func querySystemd(ctx context.Context, unit string) unitState {
	ctx, cancel := context.WithTimeout(ctx, unitTime)
	defer cancel()
	const properties = "LoadState,ActiveState,Result,ExecMainStatus,StatusText," +
		"User,Group,SupplementaryGroups,Environment,ProtectHome,PrivateTmp"
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--no-pager", "-p", properties,
		unit).Output()
	if err != nil {
		return unitState{}
	}
	values := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		values[name] = value
	}
	masked := values["LoadState"] == "masked"
	if values["LoadState"] != "loaded" && !masked {
		return unitState{}
	}
	state := unitState{Active: values["ActiveState"], Masked: masked, Result: values["Result"],
		Exit: values["ExecMainStatus"], Status: values["StatusText"], User: values["User"],
		Groups: strings.Fields(values["Group"] + " " + values["SupplementaryGroups"])}
	for _, assignment := range strings.Fields(values["Environment"]) {
		if path, found := strings.CutPrefix(assignment, "PATH="); found {
			state.Path = path
		}
	}
	hide := func(setting, off string, folders ...string) {
		if value := values[setting]; value != off && value != "read-only" {
			for _, folder := range folders {
				hidden := fmt.Sprintf("%s (%s=%s)", folder, setting, value)
				state.Hidden = append(state.Hidden, hidden)
			}
		}
	}
	hide("ProtectHome", "no", "/home", "/root", "/run/user")
	hide("PrivateTmp", "no", "/tmp", "/var/tmp")
	return state
}

// jobTime bounds a request to systemd, which may be shutting down.
const jobTime = 30 * time.Second

// stopping reports whether systemd has a job that stops a unit. systemctl list-jobs needs no D-Bus
// daemon, which may have stopped already.
func stopping(ctx context.Context, unit string) bool {
	ctx, cancel := context.WithTimeout(ctx, jobTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, "systemctl", "list-jobs", "--no-legend", "--plain",
		unit).Output()
	// each line is JOB UNIT TYPE STATE
	return err == nil && slices.Contains(strings.Fields(string(out)), "stop")
}

// reader returns a UserAccess with the unit's user, groups and hidden folders; nil if the user is
// unknown.
func (u unitState) reader() *blueprint.UserAccess {
	if u.User == "" {
		return nil
	}
	reader := blueprint.LookupUserAccess(u.User, u.Groups...)
	if reader != nil {
		reader.HiddenDirectories = u.Hidden
	}
	return reader
}

// unitName returns the name of the agent's unit, without ".service".
func (a *app) unitName() string { return unitOf("outrider", a.instance) }

// unitOf returns the name of the unit that runs a program for an agent instance, without
// ".service".
func unitOf(program, instance string) string {
	if instance == "" {
		return program
	}
	return program + "@" + instance
}

// printWhyNotRunning prints the state of the unit of an agent that does not respond, and how to
// start it.
func (a *app) printWhyNotRunning(ctx context.Context) {
	name := a.unitName()
	ctx = context.WithoutCancel(ctx) // ctx may have expired
	state := a.unit(ctx, name+".service")
	said := ""
	if state.Status != "" {
		said = ": " + state.Status
	}
	if state.Masked {
		fmt.Fprintf(a.err, "%s.service is masked; permit it with \"systemctl unmask %[1]s\".\n", name)
	}
	switch state.Active {
	case "failed":
		result := state.Result
		if result == "exit-code" {
			result = "exit code " + state.Exit
		}
		fmt.Fprintf(a.err, "%s.service failed (%s)%s\n", name, result, said)
		fmt.Fprintf(a.err,
			"See \"journalctl -u %[1]s\"; start it again with \"systemctl start %[1]s\".\n", name)
	case "activating":
		fmt.Fprintf(a.err, "%s.service is starting%s\n", name, said)
	case "active", "reloading", "deactivating":
		fmt.Fprintf(a.err, "%s.service is %s%s\n", name, state.Active, said)
	default:
		fmt.Fprintf(a.err, "Start it with \"systemctl start %s\".\n", name)
	}
	envoys := unitOf("outrider-envoy", a.instance) + ".service"
	switch {
	case state.Active == "": // no unit: the agent, and its Envoy, may run in the foreground
	case a.serves(envoys):
		fmt.Fprintf(a.err, "Envoy continues serving in %s, with the configuration of before.\n", envoys)
	default:
		fmt.Fprintln(a.err, "No Envoy serves.")
	}
}

// serves reports whether the unit of a keeper contains a process other than the keeper, which is
// then an Envoy.
func (a *app) serves(unit string) bool {
	paths, err := filepath.Glob(filepath.Join(a.paths.processes, "[0-9]*", "cgroup"))
	if err != nil {
		return false
	}
	for _, path := range paths {
		groups, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(groups), "/"+unit) {
			continue
		}
		name, err := os.ReadFile(filepath.Join(filepath.Dir(path), "comm"))
		if err == nil && strings.TrimSpace(string(name)) != "outrider-keeper" {
			return true
		}
	}
	return false
}
