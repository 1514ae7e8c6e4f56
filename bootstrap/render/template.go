package render

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"text/template"

	"outrider.org/outrider/bootstrap"
)

// maxRendered bounds what a template may write, in bytes.
const maxRendered = 64 << 20

// templatePosition is how text/template begins its errors: name, line and perhaps column.
var templatePosition = regexp.MustCompile(`^template: [^:]*:(\d+)(?::\d+)?: (?:executing "[^"]*" at )?`)

// Template renders a template of the user's (Go's text/template) with the data of TemplateData and returns it as JSON.
// What the template writes is JSON or YAML. A name that TemplateData does not have is an error. Beside Go's own, there
// are the functions toJSON (and Istio's spelling toJson), join and split (as in strings). Errors are of type *Error.
func Template(file string, content []byte, in bootstrap.Input) ([]byte, error) {
	functions := template.FuncMap{
		"toJSON": toJSON,
		"toJson": toJSON,
		"join":   func(separator string, parts []string) string { return strings.Join(parts, separator) },
		"split":  func(separator, text string) []string { return strings.Split(text, separator) },
	}
	// In text/template's errors a name ends at the first colon, which a path may hold; so the file's is added afterwards.
	parsed, err := template.New("bootstrap").Option("missingkey=error").Funcs(functions).Parse(string(content))
	if err != nil {
		return nil, templateError(file, err)
	}
	data, err := TemplateData(in)
	if err != nil {
		return nil, err
	}
	rendered := newRendering(content, parsed)
	if err := parsed.Execute(rendered, data); err != nil {
		return nil, templateError(file, err)
	}
	document, err := parse(file+" (as rendered)", rendered.text.Bytes()) // whatever the template is called, what it renders is JSON or YAML
	if err != nil {
		return nil, rendered.place(file, err)
	}
	return document.encode()
}

func toJSON(v any) (string, error) {
	encoded, err := json.Marshal(v)
	return string(encoded), err
}

func templateError(file string, err error) error {
	message := err.Error()
	match := templatePosition.FindStringSubmatch(message)
	if match == nil {
		return &bootstrap.Error{File: file, Message: strings.TrimPrefix(message, "template: ")}
	}
	line, _ := strconv.Atoi(match[1])
	return &bootstrap.Error{File: file, Line: line, Message: message[len(match[0]):]}
}
