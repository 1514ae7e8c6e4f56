package render

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"text/template"

	"outrider.org/outrider/bootstrap"
)

// maxRendered bounds the output of a template, in bytes.
const maxRendered = 64 << 20

// templatePosition matches the beginning of errors of text/template.
var templatePosition = regexp.MustCompile(
	`^template: [^:]*:(\d+)(?::\d+)?: (?:executing "[^"]*" at )?`)

// expand executes a user's template (text/template) with templateData and returns its output, JSON
// or YAML. An unknown name is an error. Additional functions are toJSON (also
// toJson), join and split. Errors are of type *Error.
func expand(file string, content []byte, in bootstrap.Input) (*value, error) {
	functions := template.FuncMap{
		"toJSON": toJSON,
		"toJson": toJSON,
		"join": func(separator string, parts []string) string {
			return strings.Join(parts, separator)
		},
		"split": func(separator, text string) []string { return strings.Split(text, separator) },
	}
	// In an error of text/template the template's name ends at the first colon, and a path may
	// contain colons. So the template is given a fixed name, and the path is added later.
	empty := template.New("bootstrap").Option("missingkey=error").Funcs(functions)
	parsed, err := empty.Parse(string(content))
	if err != nil {
		return nil, templateError(file, err)
	}
	data, err := templateData(in)
	if err != nil {
		return nil, err
	}
	rendered := newRendering(content, parsed)
	if err := parsed.Execute(rendered, data); err != nil {
		return nil, templateError(file, err)
	}
	// The extension of the template does not matter.
	document, err := parse(file+" (as rendered)", rendered.text.Bytes())
	if err != nil {
		return nil, rendered.locate(file, err)
	}
	return document, nil
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
