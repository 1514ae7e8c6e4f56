package discovery_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/discovery"
)

// compared returns the changes that files would cause for a proxy, and the problems, each as one
// line.
func compared(t *testing.T, server *discovery.Server, proxy *corev3.Node,
	paths ...string) (changes, problems []string) {
	t.Helper()
	texts, err := discovery.ReadFileTexts(paths, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var folders []string
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			folders = append(folders, path)
		}
	}
	result, err := server.Compare(t.Context(), proxy, texts, folders, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range result.Changes {
		by := ""
		if c.Cause.File != "" {
			by = fmt.Sprintf("%s:%d %s", filepath.Base(c.Cause.File), c.Cause.Line, c.Cause.Object())
		}
		changes = append(changes, fmt.Sprintf("%s %s %s %s", c.Action,
			c.Type[strings.LastIndexByte(c.Type, '.')+1:], c.Name, by))
	}
	for _, p := range result.Problems {
		problems = append(problems, p.String())
	}
	return changes, problems
}

func TestCompare_NamesResourcesAndCauses(t *testing.T) {
	mesh, elsewhere := t.TempDir(), t.TempDir()
	web, bank := filepath.Join(mesh, "web.yaml"), filepath.Join(mesh, "bank.yaml")
	write(t, web, fmt.Sprintf(webEntry, "web", "10.0.0.1")+"---\n"+
		fmt.Sprintf(webRule, "web", "RANDOM"))
	write(t, bank, fmt.Sprintf(webEntry, "bank", "10.0.0.2"))
	server, changes := start(t, discovery.Options{Files: []string{mesh}, Namespace: "shop"})
	proxy := node("sidecar", "shop", nil)
	feed, err := server.Feed(proxy)
	if err != nil {
		t.Fatal(err)
	}
	before, _ := feed.Current()

	rule := filepath.Join(elsewhere, "rule.yaml")
	write(t, rule, fmt.Sprintf(webRule, "web", "ROUND_ROBIN"))
	news := filepath.Join(elsewhere, "news", "news.yaml")
	write(t, news, fmt.Sprintf(webEntry, "news", "10.0.0.3"))
	cluster := func(change, name, by string) []string {
		return []string{
			change + " Cluster outbound|80||" + name + ".test " + by,
			change + " Cluster outbound|9000||" + name + ".test " + by,
		}
	}
	routes := func(by string) []string {
		return []string{"changed RouteConfiguration 80 " + by,
			"changed RouteConfiguration 9000 " + by}
	}
	for name, test := range map[string]struct {
		paths []string
		want  []string
	}{
		"the folder itself": {[]string{mesh}, nil},
		"a file of it":      {[]string{web}, nil},
		"an object in a file elsewhere": {[]string{rule}, []string{
			"changed Cluster outbound|80|v1|web.test rule.yaml:1 DestinationRule shop/web",
			"changed Cluster outbound|80||web.test rule.yaml:1 DestinationRule shop/web",
			"changed Cluster outbound|9000|v1|web.test rule.yaml:1 DestinationRule shop/web",
			"changed Cluster outbound|9000||web.test rule.yaml:1 DestinationRule shop/web",
		}},
		"a new object in a file elsewhere": {[]string{news}, append(
			cluster("added", "news", "news.yaml:1 ServiceEntry shop/news"),
			routes("news.yaml:1 ServiceEntry shop/news")...)},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := compared(t, server, proxy, test.paths...)
			got = without(got, " ClusterLoadAssignment ", " Listener ")
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	t.Run("a folder elsewhere stands for all files", func(t *testing.T) {
		got, _ := compared(t, server, proxy, filepath.Dir(news))
		all := strings.Join(got, "\n")
		for _, want := range []string{
			"added Cluster outbound|80||news.test news.yaml:1 ServiceEntry shop/news",
			"removed Cluster outbound|80||bank.test bank.yaml:1 ServiceEntry shop/bank",
			"removed Cluster outbound|80|v1|web.test web.yaml:1 ServiceEntry shop/web",
		} {
			if !strings.Contains(all, want) {
				t.Errorf("%q is missing in:\n%s", want, all)
			}
		}
	})
	t.Run("a file without an object that the folder's file has", func(t *testing.T) {
		// The server has not yet received a file event for this change.
		write(t, web, fmt.Sprintf(webEntry, "web", "10.0.0.1"))
		got, _ := compared(t, server, proxy, web)
		if all := strings.Join(got, "\n"); !strings.Contains(all,
			"removed Cluster outbound|80|v1|web.test web.yaml:10 DestinationRule shop/web") {
			t.Errorf("changes:\n%s", all)
		}
	})
	if after, _ := feed.Current(); after.Sequence != before.Sequence {
		t.Error("a comparison published resources")
	}
	changes <- []string{web}
	eventually(t, "the file is read", func() (bool, string) {
		got, _ := compared(t, server, proxy, mesh)
		return len(got) == 0, strings.Join(got, "\n")
	})
}

// without returns the lines that contain none of the texts.
func without(lines []string, texts ...string) []string {
	var rest []string
	for _, line := range lines {
		keep := true
		for _, text := range texts {
			keep = keep && !strings.Contains(line, text)
		}
		if keep {
			rest = append(rest, line)
		}
	}
	return rest
}

// TestCompare_ProblemsAreThoseOfTheWholeMesh: a file is validated together with the files to which
// it is added.
func TestCompare_ProblemsAreThoseOfTheWholeMesh(t *testing.T) {
	mesh, elsewhere := t.TempDir(), t.TempDir()
	gateway := filepath.Join(mesh, "gateway.yaml")
	write(t, gateway, `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {servers: [{port: {number: 8080, name: http, protocol: HTTP}, hosts: ['*']}]}
`)
	server, _ := start(t, discovery.Options{Files: []string{mesh}, Namespace: "shop"})
	proxy := node("router", "shop", nil)
	route := filepath.Join(elsewhere, "route.yaml")
	text := `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec: {hosts: [web.test], gateways: [edge], http: [{directResponse: {status: 204}}]}
`
	write(t, route, text)
	changes, problems := compared(t, server, proxy, route)
	if len(problems) > 0 || len(changes) != 1 || changes[0] !=
		"changed RouteConfiguration http.8080 route.yaml:1 VirtualService shop/web" {
		t.Errorf("changes %q, problems %q", changes, problems)
	}
	empty := filepath.Join(elsewhere, "empty")
	write(t, filepath.Join(empty, "route.yaml"), text)
	_, problems = compared(t, server, proxy, empty)
	if len(problems) != 1 || !strings.Contains(problems[0], "there is no Gateway shop/edge") {
		t.Errorf("without the Gateway: %q", problems)
	}
}
