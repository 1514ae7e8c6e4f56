// Package examples embeds the configurations that the packages install in
// /usr/share/doc/outrider/examples. Each folder mirrors /etc/outrider; the first line of
// mesh.d/NAME.yaml says what the example does.
package examples

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

//go:embed canary internal-api outbound-proxy retries reverse-proxy sni
var files embed.FS

// Example is one example configuration, installed with the package.
type Example struct {
	Name    string `json:"name"`
	Summary string `json:"summary"`
	Files   []File `json:"files"` // the mesh first, then the files of conf.d
}

// File is one file of an example.
type File struct {
	Path string `json:"path"` // relative to /etc/outrider
	Text string `json:"text"`
}

// All returns every example, sorted by name.
func All() []Example {
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		panic(err) // the files are part of the program
	}
	var all []Example
	for _, entry := range entries {
		all = append(all, load(entry.Name()))
	}
	return all
}

// Find returns the example of that name.
func Find(name string) (Example, error) {
	var names []string
	for _, example := range All() {
		if example.Name == name {
			return example, nil
		}
		names = append(names, example.Name)
	}
	return Example{}, fmt.Errorf("no example %q; there are: %s", name, strings.Join(names, ", "))
}

func load(name string) Example {
	example := Example{Name: name}
	for _, pattern := range []string{"mesh.d/*.yaml", "conf.d/*.toml"} {
		paths, err := fs.Glob(files, path.Join(name, pattern))
		if err != nil {
			panic(err)
		}
		for _, file := range paths {
			text, err := files.ReadFile(file)
			if err != nil {
				panic(err)
			}
			example.Files = append(example.Files,
				File{Path: strings.TrimPrefix(file, name+"/"), Text: string(text)})
		}
	}
	first, _, _ := strings.Cut(example.Files[0].Text, "\n")
	example.Summary = strings.TrimPrefix(first, "# ")
	return example
}
