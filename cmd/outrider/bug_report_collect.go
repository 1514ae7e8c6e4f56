package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os/exec"
	"strings"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
)

// Limits of a report: bytes of a file, times for a command and for the agent, lines of the journal.
const (
	reportFileAtMost = 64 << 20
	commandTime      = 15 * time.Second
	agentTime        = 30 * time.Second
	journalLines     = "5000"
)

// collect adds everything that is available, and records what is missing.
func (a *app) collect(ctx context.Context, r *report, shown *progress) {
	shown.report(api.Progress{Phase: "asking the agent"})
	client := a.client()
	defer client.Close()
	status := a.collectAgent(ctx, r, client)
	shown.report(api.Progress{Phase: "reading configuration and state"})
	a.collectFiles(ctx, r, status)
	shown.report(api.Progress{Phase: "reading logs"})
	a.collectHost(ctx, r)
}

// collectAgent adds the state of the agent. It returns the agent's status, which contains the paths
// of files to add; the status is empty if no agent runs.
func (a *app) collectAgent(ctx context.Context, r *report, client *api.Client) api.Status {
	ctx, cancel := context.WithTimeout(ctx, agentTime)
	defer cancel()
	status, err := client.Status(ctx)
	if err != nil {
		r.missing("everything the agent knows", err)
		return api.Status{}
	}
	r.addJSON("agent/status.json", status)
	collectValue(ctx, r, "agent/config.json", client.Config)
	collectValue(ctx, r, "agent/config-diff.json", client.ConfigDiff)
	collectValue(ctx, r, "agent/log-levels.json", client.LogLevels)
	collectValue(ctx, r, "agent/xds.json", client.ResourceTypes)
	collectValue(ctx, r, "agent/mesh-problems.json", client.MeshProblems)
	var events strings.Builder
	encoder := json.NewEncoder(&events)
	if err := client.Events(ctx, 0, false,
		func(event condition.Event) error {
			if events.Len() > reportFileAtMost {
				return fmt.Errorf("the events have more than %d bytes", reportFileAtMost)
			}
			return encoder.Encode(event)
		}); err != nil {
		r.missing("agent/events.ndjson", err)
	}
	r.add("agent/events.ndjson", events.String())
	if pieces, err := client.Report(ctx); err != nil {
		r.missing("the agent's own pieces", err)
	} else {
		for _, piece := range pieces {
			r.add("agent/"+piece.Name, piece.Text)
		}
	}
	for _, view := range []struct {
		name, path string
		query      url.Values
	}{
		{"config_dump.json", "config_dump", url.Values{"include_eds": {""}}},
		{"clusters.txt", "clusters", nil},
		{"listeners.txt", "listeners", nil}, {"server_info.json", "server_info", nil},
		{"stats.txt", "stats", nil},
		{"memory.json", "memory", nil}, {"runtime.json", "runtime", nil},
		{"init_dump.json", "init_dump", nil},
	} {
		content, err := readAdmin(ctx, client, view.path, view.query)
		r.addOr("envoy/"+view.name, content, err)
	}
	return status
}

func collectValue[T any](ctx context.Context, r *report, name string,
	query func(context.Context) (T, error)) {
	value, err := query(ctx)
	if err != nil {
		r.missing(name, err)
		return
	}
	r.addJSON(name, value)
}

func readAdmin(ctx context.Context, client *api.Client, path string,
	query url.Values) (string, error) {
	answer, err := client.Admin(ctx, path, query)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	return readAtMost(answer.Body)
}

func (r *report) addJSON(name string, value any) {
	content, err := json.Marshal(value)
	r.addOr(name, string(content), err)
}

// addOr adds a file or, if err is not nil, records that the file is missing because of err.
func (r *report) addOr(name, content string, err error) {
	if err != nil {
		r.missing(name, err)
		return
	}
	r.add(name, content)
}

// collectHost adds facts about the host, and the logs that the caller is permitted to read.
func (a *app) collectHost(ctx context.Context, r *report) {
	r.add("versions.txt", fmt.Sprintf("outrider %s\ntime %s\n", version,
		a.now().UTC().Format(time.RFC3339)))
	for _, path := range []string{"/etc/os-release", "/proc/version", "/proc/meminfo",
		"/proc/net/unix"} {
		content, err := within(ctx, func() (string, error) { return readFile(path) })
		r.addOr("host"+path, content, err)
	}
	slice := "outrider.slice"
	for name, command := range map[string][]string{
		"logs/journal.txt": {"journalctl", "--no-pager", "-o", "short-iso-precise", "-n",
			journalLines, "-u", slice},
		"host/systemctl.txt":  {"systemctl", "--no-pager", "-l", "status", slice},
		"host/listening.txt":  {"ss", "-ltnp"},
		"host/sysctl-net.txt": {"sysctl", "net.core", "net.ipv4.ip_local_port_range"},
	} {
		content, err := output(ctx, command)
		r.addOr(name, content, err)
	}
}

// output runs a command, and returns its output.
func output(ctx context.Context, command []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	run := exec.CommandContext(ctx, command[0], command[1:]...)
	run.WaitDelay = time.Second // if a child of the command keeps the output pipe open
	printed, err := run.CombinedOutput()
	if len(printed) == 0 && err != nil {
		return "", err
	}
	return string(printed), nil
}

func readAtMost(source io.Reader) (string, error) {
	content, err := io.ReadAll(io.LimitReader(source, reportFileAtMost))
	return string(content), err
}
