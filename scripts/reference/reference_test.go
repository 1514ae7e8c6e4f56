package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	kindName = regexp.MustCompile(`Kind = "(\w+)"`)
	anchor   = regexp.MustCompile(`id="([^"]+)"`)
	href     = regexp.MustCompile(`href="([^"]*)"`)
)

// TestWrite generates the pages and checks that all links between them have a target.
func TestWrite(t *testing.T) {
	t.Chdir("../..")
	folder := t.TempDir()
	if err := write(folder); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.html"))
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	anchors := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(file)
		texts[name] = string(text)
		anchors[name] = true
		for _, id := range anchor.FindAllStringSubmatch(string(text), -1) {
			anchors[name+"#"+id[1]] = true
		}
	}
	for name, text := range texts {
		for _, link := range href.FindAllStringSubmatch(text, -1) {
			to := link[1]
			if strings.HasPrefix(to, "#") {
				to = name + to
			}
			if !strings.Contains(to, "://") && !anchors[to] {
				t.Errorf("%s: the link %q leads nowhere", name, link[1])
			}
		}
		if strings.Contains(text, "layout: protoc-gen-docs") || strings.Contains(text, "<script") {
			t.Errorf("%s: has front matter or a script", name)
		}
		if kind := strings.TrimSuffix(name, ".html"); kind != "index" &&
			!strings.Contains(texts["index.html"], `<a href="`+name+`">`+kind+`</a>`) {
			t.Errorf("index.html does not name %s", kind)
		}
	}

	source, err := os.ReadFile("agent/discovery/object/object.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range kindName.FindAllStringSubmatch(string(source), -1) {
		if texts[kind[1]+".html"] == "" {
			t.Errorf("no page for kind %s", kind[1])
		}
	}
	for name, want := range map[string]string{
		"Gateway.html": "<code>Gateway.servers.port.targetPort</code></td><td>an error</td>",
		"DestinationRule.html": "<code>DestinationRule.trafficPolicy.loadBalancer." +
			"zoneAwareLbSetting*</code></td><td>a warning</td>",
		"VirtualService.html": `<td><div class="field"><div class="name"><code><a href="#HTTPRoute-`,
	} {
		if !strings.Contains(texts[name], want) {
			t.Errorf("%s has no %s", name, want)
		}
	}
}
