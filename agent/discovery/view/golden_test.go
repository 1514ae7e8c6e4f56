package view_test

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/discovery/meshtest"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/discovery/view"
	"outrider.org/outrider/agent/resource"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// details are the fields that the tests of package translate compare.
var details = []string{"@type", "accessLog", "alpnProtocols", "altStatName", "circuitBreakers",
	"combinedValidationContext", "configSource", "connectTimeout", "edsClusterConfig",
	"enableReusePort", "forwardClientCertDetails", "httpFilters", "ignorePortInHostMatching",
	"includeRequestAttemptCount", "listenerFilters", "listenerFiltersTimeout",
	"maxDirectResponseBodySizeBytes", "normalizePath", "retryPolicy", "sdsConfig", "serverName",
	"serverHeaderTransformation", "setCurrentClientCertDetails", "statPrefix",
	"streamIdleTimeout", "timeout", "tlsParams", "typedExtensionProtocolOptions",
	"upgradeConfigs", "useRemoteAddress", "validateClusters"}

// TestView_Content compares what a view publishes and reports with golden files.
func TestView_Content(t *testing.T) {
	meshtest.Golden(t, "testdata/*.txtar", *update,
		func(t *testing.T, m *meshtest.Mesh, proxy model.Node) string {
			v := newView(t, m, proxy)
			v.Update(m.EverythingChanged())
			return content(t, v, true)
		})
}

// content returns what a view publishes and reports. Listeners, routes and inbound clusters are
// detailed.
func content(t *testing.T, v *view.ProxyView, detailed bool) string {
	t.Helper()
	var text strings.Builder
	snapshot, _ := v.Feed().Current()
	for _, name := range names(v) {
		typeName, name, _ := strings.Cut(name, " ")
		for _, typeURL := range snapshot.Types() {
			if !strings.HasSuffix(typeURL, "."+typeName) {
				continue
			}
			r := snapshot.Get(resource.Key{Type: typeURL, Name: name})
			if !detailed {
				fmt.Fprintf(&text, "%s %s%s\n%x\n", typeName, name,
					meshtest.FormatOrigins(byPosition(r.Origins)), r.EncodedMessage())
				continue
			}
			text.WriteString(meshtest.ResourceTitle(r))
			switch {
			case typeURL == resource.ListenerType, typeURL == resource.RouteType,
				strings.HasPrefix(name, "inbound|"):
				text.WriteString(meshtest.YAML(t, meshtest.Message(t, r), nil, details...))
			}
		}
	}
	problems := v.Problems()
	for _, unit := range slices.Sorted(maps.Keys(problems)) {
		text.WriteString("# " + unit + ":\n" + meshtest.FormatProblems(problems[unit]))
	}
	var secrets []string
	v.ConfiguredSecrets(func(s translate.ConfiguredSecret, origins []resource.Origin) {
		secrets = append(secrets, "# secret "+s.Name()+meshtest.FormatOrigins(origins)+"\n")
	})
	slices.Sort(secrets)
	text.WriteString(strings.Join(secrets, ""))
	var hosts []string
	for _, h := range v.AllVirtualHostOrigins() {
		hosts = append(hosts, "# virtual host "+h.Routes+" "+h.VirtualHost+
			meshtest.FormatOrigins(h.Origins)+"; routes"+meshtest.FormatOrigins(h.RouteOrigins)+"\n")
	}
	slices.Sort(hosts)
	return text.String() + strings.Join(hosts, "")
}

// byPosition sorts origins by position. In a route configuration, the origins of the last change
// come first, so their order depends on earlier changes.
func byPosition(origins []resource.Origin) []resource.Origin {
	return slices.SortedFunc(slices.Values(origins), func(a, b resource.Origin) int {
		return a.Line - b.Line
	})
}

// TestView_ChangesEqualNewView changes a mesh step by step. After each step, the view must equal a
// new view.
func TestView_ChangesEqualNewView(t *testing.T) {
	meshtest.EachCase(t, "testdata/*.txtar", func(t *testing.T, m *meshtest.Mesh, proxy model.Node) {
		cache := view.NewCache()
		v := viewOf(t, m, proxy, cache)
		v.Update(m.EverythingChanged())
		for i, text := range m.MutatedTexts() {
			touched := m.SetAllowingWarnings(text)
			cache.Drop(touched)
			v.Update(touched)
			fresh := newView(t, m, proxy)
			fresh.Update(m.EverythingChanged())
			if diff := cmp.Diff(content(t, fresh, false), content(t, v, false)); diff != "" {
				t.Fatalf("step %d: -new +changed\n%s\n%s", i, diff, text)
			}
		}
	})
}

func viewOf(t *testing.T, m *meshtest.Mesh, proxy model.Node, cache *view.Cache) *view.ProxyView {
	t.Helper()
	look := func(secrets []translate.ConfiguredSecret) []view.SecretFiles {
		return make([]view.SecretFiles, len(secrets))
	}
	v, err := view.New(m.Mesh, proxy, cache, look)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
