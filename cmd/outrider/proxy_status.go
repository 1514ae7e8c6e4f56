package main

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/resource"
)

// proxyStatusAlias is an alias of `proxy status`, as in istioctl.
func (a *app) proxyStatusAlias() *cobra.Command {
	command := a.proxyStatusCommand("proxy-status", []string{"ps"})
	command.Short = "The same as \"proxy status\""
	return command
}

func (a *app) proxyStatusCommand(use string, aliases []string) *cobra.Command {
	upstream := ""
	command := a.listing(&cobra.Command{
		Use:     use,
		Aliases: aliases,
		Short:   "List xDS types: version, accepted or refused and why, age, source",
		Args:    cobra.NoArgs,
		RunE: a.asking(func(ctx context.Context, client *api.Client, _ []string) error {
			if upstream != "" {
				text, err := client.UpstreamDebug(ctx, upstream)
				if err != nil {
					return err
				}
				return a.printJSON(text)
			}
			types, err := client.ResourceTypes(ctx)
			if err != nil {
				return err
			}
			if types == nil {
				types = []api.ResourceType{}
			}
			return a.print(types, func() { a.printTypes(types) })
		}),
	})
	command.Flags().StringVar(&upstream, "upstream", "", "print istiod's /debug/`NAME`, for example "+
		"config_dump?proxyID=ID; without NAME syncz; istiod decides what this host may read")
	command.Flags().Lookup("upstream").NoOptDefVal = "syncz"
	return command
}

func (a *app) printTypes(types []api.ResourceType) {
	slices.SortStableFunc(types, func(x, y api.ResourceType) int {
		return cmp.Or(cmp.Compare(x.Epoch, y.Epoch),
			cmp.Compare(typeOrder(x.Type), typeOrder(y.Type)), cmp.Compare(x.Type, y.Type))
	})
	t := &table{
		head: []string{"EPOCH", "TYPE", "STATE", "VERSION", "RESOURCES", "AGE", "SOURCE",
			"REFUSED"},
		wide: []string{"VERSION", "SOURCE"},
	}
	for _, r := range types {
		refused := cell{text: strings.Join(nonEmpty(strings.Join(r.RefusedResources, ", "),
			strings.ReplaceAll(r.RefusalReason, "\n", " ")), ": ")}
		if refused.text != "" {
			refused.style = red
		}
		t.add(r.Epoch, typeName(r.Type), cell{r.State, stateWord(r.State)}, a.short(r.Version),
			r.Resources, a.since(r.Since), r.Source, refused)
	}
	a.write(t, "no epoch asks for configuration over xDS")
}

// typeNames lists resource types in the order of their dependencies in Envoy.
var typeNames = []struct{ suffix, name string }{
	{".Cluster", "clusters"}, {".ClusterLoadAssignment", "endpoints"}, {".Listener", "listeners"},
	{".RouteConfiguration", "routes"}, {".Secret", "secrets"},
	{".TypedExtensionConfig", "extensions"}, {".Runtime", "runtime"},
}

func typeOrder(typeURL string) int {
	for i, t := range typeNames {
		if strings.HasSuffix(typeURL, t.suffix) {
			return i
		}
	}
	return len(typeNames)
}

// typeName returns a short name for a type URL.
func typeName(typeURL string) string {
	if i := typeOrder(typeURL); i < len(typeNames) {
		return typeNames[i].name
	}
	return strings.TrimPrefix(typeURL, resource.TypePrefix)
}
