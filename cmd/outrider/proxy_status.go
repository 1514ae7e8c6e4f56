package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
)

// proxyStatusAlias is istioctl's spelling of `proxy status`.
func (a *app) proxyStatusAlias() *cobra.Command {
	command := a.proxyStatusCommand("proxy-status", []string{"ps"})
	command.Short = "The same as \"proxy status\""
	return command
}

func (a *app) proxyStatusCommand(use string, aliases []string) *cobra.Command {
	return a.listing(&cobra.Command{
		Use:     use,
		Aliases: aliases,
		Short:   "List xDS types: version, accepted or refused and why, age, source",
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			client := a.client()
			defer client.Close()
			types, err := client.ResourceTypes(command.Context())
			if err != nil {
				return err
			}
			if a.json {
				if types == nil {
					types = []api.ResourceType{}
				}
				return a.printJSON(types)
			}
			slices.SortStableFunc(types, func(x, y api.ResourceType) int {
				return cmp.Or(cmp.Compare(x.Epoch, y.Epoch), cmp.Compare(typeOrder(x.Type), typeOrder(y.Type)), cmp.Compare(x.Type, y.Type))
			})
			t := &table{head: []string{"EPOCH", "TYPE", "STATE", "VERSION", "RESOURCES", "AGE", "SOURCE", "REFUSED"}, wide: []string{"VERSION", "SOURCE"}}
			for _, r := range types {
				refused := strings.Join(nonEmpty(strings.Join(r.RefusedResource, ", "), r.Refused), ": ")
				t.add(text("%d", r.Epoch), text("%s", typeName(r.Type)), cell{r.State, stateWord(r.State)}, text("%s", a.short(r.Version)),
					text("%d", r.Resources), text("%s", a.since(r.Since)), text("%s", r.Source),
					cell{orDash(strings.ReplaceAll(refused, "\n", " ")), refusedStyle(refused)})
			}
			a.write(t, "no epoch asks for configuration over xDS")
			return nil
		},
	})
}

// typeNames are the types in the order in which Envoy depends on them.
var typeNames = []struct{ suffix, name string }{
	{".Cluster", "clusters"}, {".ClusterLoadAssignment", "endpoints"}, {".Listener", "listeners"},
	{".RouteConfiguration", "routes"}, {".Secret", "secrets"}, {".TypedExtensionConfig", "extensions"}, {".Runtime", "runtime"},
}

func typeOrder(typeURL string) int {
	for i, t := range typeNames {
		if strings.HasSuffix(typeURL, t.suffix) {
			return i
		}
	}
	return len(typeNames)
}

// typeName is a word for a type URL.
func typeName(typeURL string) string {
	if i := typeOrder(typeURL); i < len(typeNames) {
		return typeNames[i].name
	}
	return strings.TrimPrefix(typeURL, "type.googleapis.com/")
}

func refusedStyle(refused string) style {
	if refused != "" {
		return red
	}
	return plain
}
