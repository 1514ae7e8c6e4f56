package main

import (
	"errors"
	"regexp"
	"strings"
	"text/template"

	"outrider.org/outrider/agent/discovery/object"
)

// page is the reference page of one kind.
type page struct {
	Kind    string
	source  string // path of the HTML file in the module istio.io/api
	Summary string // description in the source
	address string // URL of the page on Istio's site, without .html
	body    string // HTML below the front matter of the source
}

// pages are the pages of all supported kinds of mesh objects, and of the types to which these pages
// link.
var pages = append(pagesOf(object.Groups()...),
	page{Kind: "ProxyConfig", source: "networking/v1beta1/proxy_config.pb.html"},
	page{Kind: "MeshConfig", source: "mesh/v1alpha1/istio.mesh.v1alpha1.pb.html"},
	page{Kind: "WorkloadSelector", source: "type/v1beta1/selector.pb.html"})

// pagesOf returns the pages of the supported kinds in API groups. The source of each is the HTML
// file that Istio generates from the proto file of the kind.
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

// File returns the name of the generated file.
func (p page) File() string { return p.Kind + ".html" }

// read parses a source: the front matter, which is YAML for Istio's site, and the body.
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

// siteLink matches links to pages of Istio's reference, whether or not they contain a host, a
// version or .html.
var siteLink = regexp.MustCompile(`href="(?:https://istio\.io)?(?:/latest)?` +
	`(/docs/reference/config/[^"#]*?)(?:\.html|/)?(#[^"]*)?"`)

// localLinks replaces links to pages of Istio's site: by links to the generated page if there is
// one, else by absolute links.
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

// missing is a field of a kind that this version of Outrider does not support.
type missing struct {
	Field  string
	Answer string // what "outrider mesh check" prints for the field
	Note   string // additional explanation; may be empty
}

// answers maps words in the file unshown to what "outrider mesh check" prints.
var answers = map[string]string{"refused": "an error", "warned": "a warning"}

// readMissing returns, by kind, the fields in the list that validation refuses or warns about.
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

// execute returns the result of a template with data.
func execute(t *template.Template, data any) string {
	var text strings.Builder
	if err := t.Execute(&text, data); err != nil {
		panic(err) // impossible: templates and data are constants
	}
	return text.String()
}

func missingTable(fields []missing) string { return execute(missingLayout, fields) }

func index() string { return execute(indexLayout, pages) }
