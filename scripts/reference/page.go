package main

import (
	"errors"
	"regexp"
	"strings"
	"text/template"

	"outrider.org/outrider/agent/discovery/object"
)

// page is the reference of one kind.
type page struct {
	Kind    string
	source  string // path of the HTML file in the module istio.io/api
	Summary string // from the source
	address string // URL on Istio's site, without .html
	body    string // HTML
}

// pages are the pages of all supported kinds of mesh objects and of the types that they refer to.
var pages = append(pagesOf(object.Groups()...),
	page{Kind: "ProxyConfig", source: "networking/v1beta1/proxy_config.pb.html"},
	page{Kind: "MeshConfig", source: "mesh/v1alpha1/istio.mesh.v1alpha1.pb.html"},
	page{Kind: "WorkloadSelector", source: "type/v1beta1/selector.pb.html"})

// pagesOf returns the pages of the supported kinds of groups. Istio generates each from the proto
// file that declares the kind.
func pagesOf(groups ...string) (all []page) {
	for _, group := range groups {
		for _, kind := range object.Kinds(group) {
			if spec := object.NewSpec(object.Kind(kind)); spec != nil {
				file := spec.ProtoReflect().Descriptor().ParentFile().Path()
				all = append(all, page{Kind: kind,
					source: strings.TrimSuffix(file, ".proto") + ".pb.html"})
			}
		}
	}
	return all
}

// File returns the name of the page's file.
func (p page) File() string { return p.Kind + ".html" }

// read splits the source into the page's metadata, YAML for Istio's site, and its body.
func (p *page) read(source string) error {
	head, body, found := strings.Cut(strings.TrimPrefix(source, "---\n"), "\n---\n")
	if !found {
		return errors.New("no front matter")
	}
	p.body = body
	for line := range strings.Lines(head) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "description":
			p.Summary = value
		case "location":
			p.address = strings.TrimSuffix(value, ".html")
		}
	}
	return nil
}

// siteLink matches links to pages of Istio's reference, with or without a suffix or a version.
var siteLink = regexp.MustCompile(`href="(?:https://istio\.io)?(?:/latest)?` +
	`(/docs/reference/config/[^"#]*?)(?:\.html|/)?(#[^"]*)?"`)

// localLinks replaces links to pages of Istio's site by local ones if the page exists here, and by
// absolute ones otherwise.
func localLinks(body string) string {
	body = siteLink.ReplaceAllStringFunc(body, func(link string) string {
		parts := siteLink.FindStringSubmatch(link)
		for _, page := range pages {
			if page.address == "https://istio.io"+parts[1] {
				return `href="` + page.File() + parts[2] + `"`
			}
		}
		return `href="https://istio.io` + parts[1] + "/" + parts[2] + `"`
	})
	return strings.ReplaceAll(body, `href="/`, `href="https://istio.io/`)
}

// missing is a field that this version does not support.
type missing struct {
	Field  string
	Answer string // output of mesh check
	Note   string // may be empty
}

// answers maps the words of the list to what mesh check prints.
var answers = map[string]string{"refused": "an error", "warned": "a warning"}

// readMissing returns the fields that validation refuses or warns about, by kind.
func readMissing(list string) map[string][]missing {
	fields := map[string][]missing{}
	for line := range strings.Lines(list) {
		field, reason, _ := strings.Cut(strings.TrimSpace(line), " ")
		kind, _, _ := strings.Cut(field, ".")
		word, note, _ := strings.Cut(reason, ": ")
		if answer, ok := answers[word]; ok && !strings.HasPrefix(line, "#") {
			fields[kind] = append(fields[kind], missing{field, answer, note})
		}
	}
	return fields
}

// execute returns the HTML of a template.
func execute(t *template.Template, data any) string {
	var text strings.Builder
	if err := t.Execute(&text, data); err != nil {
		panic(err) // the templates and their data are constants
	}
	return text.String()
}

func missingTable(fields []missing) string { return execute(missingLayout, fields) }

func index() string { return execute(indexLayout, pages) }
