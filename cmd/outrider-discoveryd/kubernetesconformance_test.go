package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/kubernetes"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
	"outrider.org/outrider/scripts/parts/cluster"
)

// testKubernetesConformance makes the comparison of TestConformance_SourcesGiveTheSameResources
// with an API server: once with all objects from a kubernetes.Source, and once with Services from a
// kubernetes.Registry in place of ServiceEntries.
func testKubernetesConformance(t *testing.T, c *cluster.Cluster) {
	for _, name := range []string{"all", "bank", "parts", "shop", "team"} {
		c.Create("/api/v1/namespaces", "metadata: {name: "+name+"}")
	}
	kubeconfig := c.Kubeconfig(t, c.APIServerAddress(), "secret")
	objects := func(t *testing.T, g group, _ *discovery.Server, sink source.Sink) {
		for _, o := range g.objects {
			createObject(t, c, o)
		}
		one, err := kubernetes.NewSource(kubernetes.Options{Name: "kubernetes",
			Kubeconfig: kubeconfig}, sink)
		if err != nil {
			t.Fatal(err)
		}
		runUntilEnd(t, one.Run)
	}
	total := 0
	for _, g := range groups(t) {
		t.Run(g.name, func(t *testing.T) {
			g.objects = sameAge(t, g.objects)
			compareGroup(t, g, g.objects, map[string]deliver{"kubernetes": objects})
		})
		services, others := servicesOf(t, g.objects)
		if total += len(services); len(services) == 0 {
			continue
		}
		t.Run("services of "+g.name, func(t *testing.T) {
			inFiles := sameAge(t, others)
			// the order in which the objects are created in the API server
			for i, s := range services {
				inFiles = append(inFiles, s.entry(t, i))
			}
			g.objects = others
			compareGroup(t, g, inFiles, map[string]deliver{"kubernetes": func(t *testing.T, g group,
				files *discovery.Server, sink source.Sink) {
				objects(t, g, files, sink)
				for i, s := range services {
					s.create(t, c, i)
				}
				registry, err := kubernetes.NewRegistry(kubernetes.Options{Name: registryName,
					Kubeconfig: kubeconfig, Namespaces: []string{"shop"}, Domain: "cluster.local"}, sink)
				if err != nil {
					t.Fatal(err)
				}
				runUntilEnd(t, registry.Run)
			}})
		})
	}
	if total < 150 {
		t.Errorf("%d ServiceEntries are Services", total)
	}
}

// sameAge returns the objects without creation times, because an API server sets its own.
func sameAge(t *testing.T, objects []corpusObject) (all []corpusObject) {
	t.Helper()
	for _, o := range objects {
		var tree map[string]any
		if err := json.Unmarshal(o.text, &tree); err != nil {
			t.Fatal(err)
		}
		delete(tree["metadata"].(map[string]any), "creationTimestamp")
		o.text = encode(t, tree)
		all = append(all, o)
	}
	return all
}

func encode(t *testing.T, tree any) []byte {
	t.Helper()
	text, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// createObject creates an object with its status, and removes it when the test ends.
func createObject(t *testing.T, c *cluster.Cluster, o corpusObject) {
	t.Helper()
	var head struct {
		APIVersion string
		Status     json.RawMessage
	}
	if err := json.Unmarshal(o.text, &head); err != nil {
		t.Fatal(err)
	}
	root := "/apis/"
	if head.APIVersion == "v1" {
		root = "/api/"
	}
	at := root + head.APIVersion + "/namespaces/" + o.Namespace + "/" +
		strings.ReplaceAll(strings.ToLower(o.Kind), "entry", "entrie") + "s"
	c.Create(at, string(o.text))
	t.Cleanup(func() { c.Send(http.MethodDelete, at+"/"+o.Name+"?gracePeriodSeconds=0", "") })
	if head.Status != nil {
		c.MergePatch(at+"/"+o.Name+"/status", `{"status": `+string(head.Status)+`}`)
	}
}
