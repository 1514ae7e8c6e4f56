// Package examples embeds the configurations that the packages install in
// /usr/share/doc/outrider/examples. Each folder mirrors /etc/outrider. One of its files has the
// instructions: mesh.d/NAME.yaml, or else conf.d/60-NAME.toml, or else the first file in
// alphabetical order. The first line of that file says what the example does. Groups lists all
// examples.
package examples

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

//go:embed */*
var files embed.FS

// Group is a heading of the list of examples.
type Group struct {
	Name    string
	Summary string
	names   []string // names of its examples
}

// Groups are all groups, with every example of this folder, in the order of the list.
var Groups = []Group{
	{"edge", "a proxy of its own, in front of servers or clients", []string{
		"hello", "reverse-proxy", "certbot", "two-hosts", "canary", "retries", "internal-api",
		"sni", "outbound-proxy", "east-west"}},
	{"extra", "for an edge, beside one of the above", []string{
		"compression", "rate-limit", "request-size", "basic-auth", "jwt", "allow-addresses",
		"external-authorizer", "error-pages", "health-checks", "sticky-sessions", "trusted-proxies", "proxy-protocol",
		"plain-headers", "json-log", "istio-metrics", "telemetry", "wasm"}},
	{"agent", "beside an application, or more than one agent", []string{
		"sidecar", "mutual-tls", "access-rules", "capture-unit", "two-instances"}},
}

// Example is one example configuration, installed with the package.
type Example struct {
	Name    string `json:"name"`
	Group   string `json:"group"`
	Summary string `json:"summary"`
	Files   []File `json:"files"` // the one with the instructions first
}

// File is one file of an example.
type File struct {
	Path string `json:"path"` // relative to /etc/outrider
	Text string `json:"text"`
}

// AllExamples returns every example, in the order of the list.
func AllExamples() []Example {
	var all []Example
	for _, group := range Groups {
		all = append(all, group.Examples()...)
	}
	return all
}

// Examples returns the examples of a group.
func (g Group) Examples() []Example {
	var all []Example
	for _, name := range g.names {
		example := load(name)
		example.Group = g.Name
		all = append(all, example)
	}
	return all
}

// FindExample returns the example with a name.
func FindExample(name string) (Example, error) {
	var names []string
	for _, example := range AllExamples() {
		if example.Name == name {
			return example, nil
		}
		names = append(names, example.Name)
	}
	return Example{}, fmt.Errorf("no example %q; there are: %s", name, strings.Join(names, ", "))
}

// load reads the folder of an example.
func load(name string) Example {
	example := Example{Name: name}
	err := fs.WalkDir(files, name, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := files.ReadFile(file)
		example.Files = append(example.Files,
			File{Path: strings.TrimPrefix(file, name+"/"), Text: string(text)})
		return err
	})
	if err != nil {
		panic(err) // the files are part of the program
	}
	slices.SortStableFunc(example.Files, func(a, b File) int {
		return rank(name, a) - rank(name, b)
	})
	first, _, _ := strings.Cut(example.Files[0].Text, "\n")
	example.Summary = strings.TrimPrefix(first, "# ")
	return example
}

// rank orders the files of an example: the one with the instructions is the first.
func rank(name string, file File) int {
	switch file.Path {
	case "mesh.d/" + name + ".yaml":
		return 0
	case "conf.d/60-" + name + ".toml":
		return 1
	}
	return 2
}
