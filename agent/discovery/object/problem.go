package object

import (
	"cmp"
	"strings"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/resource"
)

// Problem describes an error, warning or note about an object or file for people. It is comparable.
type Problem struct {
	File string `json:"file"`
	Line int    `json:"line"` // line in the file, from 1; 0 if the problem is in no file
	// object as "Kind namespace/name"; "" if the object cannot be read
	Object string `json:"object,omitempty"`
	// path of the field in the object: spec.http[0].route[1].weight
	Field string `json:"field,omitempty"`
	// error: the object is ignored; warning: it has another effect than intended
	Severity condition.Severity `json:"severity"`
	Message  string             `json:"message"`
	Fix      string             `json:"cure,omitempty"`
}

// String returns "file:line: object: field: message; fix".
func (p Problem) String() string {
	parts := make([]string, 0, 4)
	if p.File != "" {
		parts = append(parts, resource.Position(p.File, p.Line))
	}
	if p.Object != "" {
		parts = append(parts, p.Object)
	}
	if p.Field != "" {
		parts = append(parts, p.Field)
	}
	text := strings.Join(append(parts, p.Message), ": ")
	if p.Fix != "" {
		text += "; " + p.Fix
	}
	return text
}

// Compare compares problems by position, for sorting.
func (p Problem) Compare(q Problem) int {
	return cmp.Or(cmp.Compare(p.File, q.File), cmp.Compare(p.Line, q.Line),
		cmp.Compare(p.Object, q.Object),
		cmp.Compare(p.Field, q.Field), cmp.Compare(p.Message, q.Message),
		cmp.Compare(p.Severity, q.Severity), cmp.Compare(p.Fix, q.Fix))
}

// Finding is a problem of one field of a spec, without a file and line.
type Finding struct {
	Field    string // path of the field below spec: http[0].route[1].weight; "" is spec itself
	Severity condition.Severity
	Message  string
	Fix      string

	// UnknownField reports whether the finding is a field or value that is missing in the version of
	// Envoy's API that is linked into this program. A newer Envoy may know it.
	UnknownField bool
}

// NewProblem returns the problem for a finding, at the object's line.
func (o *Object) NewProblem(f Finding) Problem {
	field := "spec"
	if f.Field != "" {
		field += "." + f.Field
	}
	return Problem{File: o.File, Line: o.Line, Object: o.String(), Field: field,
		Severity: f.Severity, Message: f.Message, Fix: f.Fix}
}

// Warning returns a warning about a field.
func (o *Object) Warning(field, message, fix string) Problem {
	return o.NewProblem(Finding{Field: field, Severity: condition.Warning, Message: message,
		Fix: fix})
}

// ProblemAt returns a problem of the object that from identifies, at its file and line.
func ProblemAt(from resource.Origin, severity condition.Severity, message, fix string) Problem {
	return Problem{File: from.File, Line: from.Line, Object: from.Object(), Severity: severity,
		Message: message, Fix: fix}
}
