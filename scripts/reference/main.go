// Command reference generates HTML pages for /usr/share/doc/outrider/reference. They describe the
// kinds of objects that the embedded discovery server reads. The text is that of Istio's API in the
// Go module istio.io/api.
//
//	go run ./scripts/reference FOLDER
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: reference FOLDER")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

// unshown is the path of a list that contains, among others, the fields that validation refuses or
// warns about.
const unshown = "agent/discovery/testdata/conformance/unshown"

// write generates all pages and their index in a folder. The working directory must be the root of
// the source tree.
func write(folder string) error {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}} {{.Dir}}",
		"istio.io/api").Output()
	if err != nil {
		return fmt.Errorf("find the module istio.io/api: %w", err)
	}
	version, module, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	list, err := os.ReadFile(unshown)
	if err != nil {
		return err
	}
	missing := readMissing(string(list))
	for i := range pages {
		text, err := os.ReadFile(filepath.Join(module, pages[i].source))
		if err != nil {
			return err
		}
		if err := pages[i].read(string(text)); err != nil {
			return fmt.Errorf("%s: %w", pages[i].source, err)
		}
	}
	for _, page := range pages {
		body := localLinks(page.body)
		if fields := missing[page.Kind]; len(fields) > 0 {
			body = missingTable(fields) + body
		}
		if err := writePage(folder, page.File(), document{
			Title: page.Kind, Version: version, Body: body}); err != nil {
			return err
		}
	}
	return writePage(folder, "index.html", document{
		Title: "Reference of mesh.d", Version: version, Body: index()})
}

func writePage(folder, name string, d document) error {
	var text bytes.Buffer
	if err := layout.Execute(&text, d); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, name), text.Bytes(), 0o644)
}
