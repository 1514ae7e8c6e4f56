package object

import (
	"cmp"
	"fmt"
	"strings"

	"outrider.org/outrider/agent/condition"
)

// Problem is one thing that is wrong with what was read, told so that it can be cured. It is
// comparable.
type Problem struct {
	File string `json:"file"`
	Line int    `json:"line"` // from 1
	// "Kind namespace/name"; "" if it could not be read
	Object string `json:"object,omitempty"`
	// path in the object: spec.http[0].route[1].weight
	Field string `json:"field,omitempty"`
	// error: not carried out; warning: not as it was meant
	Severity condition.Severity `json:"severity"`
	Message  string             `json:"message"`
	Cure     string             `json:"cure,omitempty"`
}

// String is "file:line: object: field: message; cure".
func (p Problem) String() string {
	parts := make([]string, 0, 4)
	parts = append(parts, fmt.Sprintf("%s:%d", p.File, p.Line))
	if p.Object != "" {
		parts = append(parts, p.Object)
	}
	if p.Field != "" {
		parts = append(parts, p.Field)
	}
	text := strings.Join(append(parts, p.Message), ": ")
	if p.Cure != "" {
		text += "; " + p.Cure
	}
	return text
}

// Compare orders problems by place.
func (p Problem) Compare(q Problem) int {
	return cmp.Or(cmp.Compare(p.File, q.File), cmp.Compare(p.Line, q.Line),
		cmp.Compare(p.Object, q.Object),
		cmp.Compare(p.Field, q.Field), cmp.Compare(p.Message, q.Message),
		cmp.Compare(p.Severity, q.Severity), cmp.Compare(p.Cure, q.Cure))
}

// Finding is what is wrong with a field of an object, before its line is known.
type Finding struct {
	Field    string // path below spec: http[0].route[1].weight; "" is spec itself
	Severity condition.Severity
	Message  string
	Cure     string
}

// Problem places a finding at an object; the line is the object's own.
func (o *Object) Problem(f Finding) Problem {
	field := "spec"
	if f.Field != "" {
		field += "." + f.Field
	}
	return Problem{File: o.File, Line: o.Line, Object: o.String(), Field: field,
		Severity: f.Severity, Message: f.Message, Cure: f.Cure}
}
