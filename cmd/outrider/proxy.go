package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
)

func (a *app) proxyCommand() *cobra.Command {
	command := group("proxy", "Show what Envoy is running",
		a.proxyList("clusters [CLUSTER]...",
			"List clusters: type, state, healthy endpoints, source file and line",
			[]string{"cluster", "c"}, a.showClusters),
		a.proxyList("listeners", "List listeners: address, state, source file and line",
			[]string{"listener", "l"}, a.showListeners),
		a.proxyList("routes", "List routes: domains, match, target, source file and line",
			[]string{"route", "r"}, a.showRoutes),
		a.proxyList("endpoints [CLUSTER]...",
			"List endpoints: address, cluster, health, requests, errors",
			[]string{"endpoint", "ep", "e"}, a.showEndpoints),
		a.proxyList("secrets", "List secrets: type, state, subject, validity; never private keys",
			[]string{"secret", "s"}, a.showSecrets),
		&cobra.Command{Use: "bootstrap", Aliases: []string{"b"}, Args: cobra.NoArgs,
			Short: "Print the bootstrap of the live epoch as JSON",
			RunE:  a.asking(a.showBootstrap)},
		a.proxyStatusCommand("status", []string{"ps"}),
	)
	command.Aliases = []string{"proxy-config", "pc"}
	return command
}

// proxyList returns a command that lists resources of the live epoch. If the usage line use
// contains an argument, the user can name clusters.
func (a *app) proxyList(use, short string, aliases []string,
	show func(ctx context.Context, client *api.Client, named []string) error,
) *cobra.Command {
	command := &cobra.Command{
		Use: use, Short: short, Aliases: aliases, Args: cobra.NoArgs,
		RunE: a.asking(func(ctx context.Context, client *api.Client, named []string) error {
			if a.json && len(named) > 0 {
				return usagef("--json prints all clusters: leave out the names")
			}
			return show(ctx, client, named)
		}),
	}
	if strings.Contains(use, " ") {
		command.Args, command.ValidArgsFunction = cobra.ArbitraryArgs, a.completing(clusterNames)
	}
	return a.listing(command)
}

// adminJSON requests a path of the live epoch's admin interface, and decodes the JSON response.
func adminJSON(
	ctx context.Context, client *api.Client, path string, query url.Values, into any,
) error {
	answer, err := client.Admin(ctx, path, query)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(into); err != nil {
		return fmt.Errorf("read Envoy's %s: %w", path, err)
	}
	return nil
}

// dump returns the section of Envoy's configuration dump (envoy.admin.v3) with the given message
// name, such as ClustersConfigDump. It returns an empty object if Envoy does not send the section.
func dump(ctx context.Context, client *api.Client, message string) (json.RawMessage, error) {
	var all struct {
		Configs []json.RawMessage `json:"configs"`
	}
	if err := adminJSON(ctx, client, "config_dump", nil, &all); err != nil {
		return nil, err
	}
	for _, part := range all.Configs {
		var typed struct {
			Type string `json:"@type"`
		}
		if json.Unmarshal(part, &typed) == nil && strings.HasSuffix(typed.Type, "."+message) {
			return part, nil
		}
	}
	return json.RawMessage("{}"), nil
}

// decodeDump decodes a section of the configuration dump, and requests the origins of its
// resources. With --json it prints both without decoding, and printed is true.
func (a *app) decodeDump(
	ctx context.Context, client *api.Client, message string, into any, types ...string,
) (from origins, printed bool, err error) {
	part, err := dump(ctx, client, message)
	if err != nil {
		return origins{}, false, err
	}
	if from, err = originsOf(ctx, client, types...); err != nil {
		return origins{}, false, err
	}
	if a.json {
		return from, true, a.printWith(part, from)
	}
	if err := json.Unmarshal(part, into); err != nil {
		return origins{}, false, fmt.Errorf("read Envoy's %s: %w", message, err)
	}
	return from, false, nil
}

// short returns the first characters of a version, which suffice to distinguish it from others.
// With "-o wide" it returns all of it.
func (a *app) short(s string) string {
	const enough = 16
	if len(s) > enough && !a.wide {
		return s[:enough] + "…"
	}
	return cmp.Or(s, "-")
}

// socketAddress is envoy.config.core.v3.Address.
type socketAddress struct {
	Socket struct {
		Address string `json:"address"`
		Port    int    `json:"port_value"`
	} `json:"socket_address"`
	Pipe struct {
		Path string `json:"path"`
	} `json:"pipe"`
	Internal struct {
		Name string `json:"server_listener_name"`
	} `json:"envoy_internal_address"`
}

func (s socketAddress) String() string {
	switch {
	case s.Pipe.Path != "":
		return s.Pipe.Path
	case s.Internal.Name != "":
		return "envoy://" + s.Internal.Name
	case s.Socket.Address == "":
		return "-"
	case strings.Contains(s.Socket.Address, ":"):
		return fmt.Sprintf("[%s]:%d", s.Socket.Address, s.Socket.Port)
	}
	return fmt.Sprintf("%s:%d", s.Socket.Address, s.Socket.Port)
}
