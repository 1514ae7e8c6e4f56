package discovery_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery"
)

// TestProxySettings_FollowTheFiles changes MeshConfig, and changes, breaks and removes a
// ProxyConfig. After each step, ProxySettings are those of the files, and ProxySettingsTextsByFile
// differs for the changed file only. An invalid ProxyConfig changes neither.
func TestProxySettings_FollowTheFiles(t *testing.T) {
	folder := t.TempDir()
	mesh, file := filepath.Join(folder, "mesh.yaml"), filepath.Join(folder, "mesh.d", "proxy.yaml")
	write(t, mesh, "defaultConfig: {concurrency: 2, proxyMetadata: {A: mesh}}\n")
	config := func(spec string) {
		write(t, file, "apiVersion: networking.istio.io/v1beta1\nkind: ProxyConfig\n"+
			"metadata: {name: p}\nspec: {"+spec+"}\n")
	}
	config("concurrency: 3, environmentVariables: {B: file}")
	options := discovery.Options{Files: []string{filepath.Dir(file)}, FilesAreLocal: true,
		Settings: discovery.Settings{Namespace: "shop", MeshConfigFile: mesh}}
	server, _ := start(t, options)
	inputs := server.ProxySettingsTextsByFile()
	expect := func(when string, workers int32, environment, problem string, changed ...string) {
		t.Helper()
		if err := server.Rescan(context.Background()); err != nil {
			t.Fatal(err)
		}
		got := server.ProxySettings("shop", nil)
		text := got.Environment["A"] + " " + got.Environment["B"]
		if got.Concurrency == nil || *got.Concurrency != workers || text != environment {
			t.Errorf("%s: %v, %q", when, got.Concurrency, text)
		}
		found := ""
		for _, p := range server.Problems() {
			found += p.String() + "\n"
		}
		if !strings.Contains(found, problem) || problem == "" && found != "" {
			t.Errorf("%s: problems %q, want %q", when, found, problem)
		}
		now := server.ProxySettingsTextsByFile()
		for _, path := range []string{mesh, file} {
			if is, want := now[path] != inputs[path], strings.Contains(strings.Join(changed, " "),
				path); is != want {
				t.Errorf("%s: changed %s: %v", when, path, is)
			}
		}
		inputs = now
	}
	expect("at first", 3, "mesh file", "")
	config("concurrency: 4")
	expect("after a change", 4, "mesh ", "", file)
	config("concurrency: -4")
	expect("while invalid", 4, "mesh ", file+":4: ProxyConfig shop/p: spec.concurrency: -4")
	write(t, filepath.Join(filepath.Dir(file), "second.yaml"), "apiVersion: networking.istio.io/v1beta1\n"+
		"kind: ProxyConfig\nmetadata: {name: q}\nspec: {concurrency: 9}\n")
	config("concurrency: 4")
	expect("with a second one", 4, "mesh ", "has no effect: ProxyConfig shop/p at "+file+":1")
	write(t, filepath.Join(filepath.Dir(file), "second.yaml"), "# none\n")
	write(t, file, "# none\n")
	expect("once removed", 2, "mesh ", "", file)
	write(t, mesh, "defaultConfig: {concurrency: 1}\n")
	expect("after a change of MeshConfig", 1, " ", "", mesh)

	config("concurrency: 3")
	options.FilesAreLocal = false
	remote, _ := start(t, options)
	found := ""
	for _, p := range remote.Problems() {
		found += p.String() + "\n"
	}
	for _, want := range []string{file + ":4: ProxyConfig shop/p: spec: a ProxyConfig has no effect",
		mesh + ":1: defaultConfig: concurrency and proxyMetadata have no effect"} {
		if !strings.Contains(found, want) {
			t.Errorf("problems of a server of other hosts %q; want %q", found, want)
		}
	}
}
